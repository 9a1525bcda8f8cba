"""How to load a finished adapter: the last lines of a run and the snippets of its report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from lorarl_api.v1alpha1 import served_rank

LOCAL_FOLDER = "lora_adapter"
"""Where the snippets download an adapter to."""


def local_path(uri: str) -> str:
    """The path behind file:PATH and file:///PATH; where the download commands put an adapter of another store.

    A file:///PATH is percent-encoded, a file:PATH is taken as it is.
    """
    if uri.startswith("file://"):
        return unquote(urlsplit(uri).path)
    return uri.removeprefix("file:") if uri.startswith("file:") else LOCAL_FOLDER


def download_command(uri: str) -> str | None:
    """The store's own command that copies the adapter to LOCAL_FOLDER; None for an adapter that lies in a folder."""
    parts = urlsplit(uri)
    if parts.scheme == "s3":
        return f"aws s3 cp --recursive {shlex.quote(uri)} {LOCAL_FOLDER}"
    if parts.scheme == "gs":
        return f"gcloud storage rsync --recursive {shlex.quote(uri)} {LOCAL_FOLDER}"
    if parts.scheme == "az":
        # Blobs keep their path below the destination, so the last command moves the folder out of it.
        path = parts.path.strip("/")
        download = (
            f"az storage blob download-batch --source {shlex.quote(parts.netloc)} --pattern {shlex.quote(path + '/*')} --destination ."
        )
        return f"{download} && mv {shlex.quote(path)} {LOCAL_FOLDER}"
    return None


def peft_snippet(summary: Mapping[str, Any]) -> str:
    """Python that loads base model and adapter with transformers and PEFT."""
    base, revision = summary["base_model"], summary["base_revision"]
    arguments = repr(base) + (f", revision={revision!r}" if revision else "")
    return "\n".join(
        [
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f"tokenizer = AutoTokenizer.from_pretrained({arguments})",
            f"model = AutoModelForCausalLM.from_pretrained({arguments})",
            f"model = PeftModel.from_pretrained(model, {local_path(summary['adapter_uri'])!r})",
        ]
    )


def vllm_command(summary: Mapping[str, Any]) -> str:
    """The command that serves base model and adapter with vLLM; requests name the job as their model."""
    rank = served_rank(summary["adapter"]["rank"])
    revision = f" --revision {shlex.quote(summary['base_revision'])}" if summary["base_revision"] else ""
    module = shlex.quote(f"{summary['job']}={local_path(summary['adapter_uri'])}")
    return f"vllm serve {shlex.quote(summary['base_model'])}{revision} --enable-lora --max-lora-rank {rank} --lora-modules {module}"


def final_message(summary: Mapping[str, Any]) -> str:
    """The last lines of a run, from its run_summary.json: the adapter's URI, and how to load it with PEFT and with vLLM."""
    uri = summary["adapter_uri"]
    if uri is None:
        return "No adapter was published."
    base = repr(summary["base_model"]) + (f", revision={summary['base_revision']!r}" if summary["base_revision"] else "")
    download = download_command(uri)
    return "\n".join(
        [
            *([] if download is None else [f"Download  {download}"]),
            "PEFT      from peft import PeftModel; from transformers import AutoModelForCausalLM",
            f"          PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({base}), {local_path(uri)!r})",
            f"vLLM      {vllm_command(summary)}",
            f"Adapter   {uri}",
        ]
    )
