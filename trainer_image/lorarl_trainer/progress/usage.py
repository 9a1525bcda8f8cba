"""How to load a finished adapter: the last lines of a run and the snippets of its report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from lorarl_api.v1alpha1 import served_rank

ADAPTER_FOLDER = "lora_adapter"
"""Where the snippets download an adapter to."""
BASE_FOLDER = "base_model"
"""... and its base model."""


def local_path(uri: str) -> str:
    """The path behind file:PATH and file:///PATH, as it is written; where the download commands put an adapter of another store."""
    return uri.removeprefix("file://").removeprefix("file:") if uri.startswith("file:") else ADAPTER_FOLDER


def download_command(uri: str, folder: str = ADAPTER_FOLDER) -> str | None:
    """The store's own command that copies a folder of a store here; None for what lies in a folder or on a hub."""
    parts = urlsplit(uri)
    if parts.scheme == "s3":
        return f"aws s3 cp --recursive {shlex.quote(uri)} {folder}"
    if parts.scheme == "gs":
        return f"gcloud storage rsync --recursive {shlex.quote(uri)} {folder}"
    if parts.scheme == "az":
        # Blobs keep their path below the destination, so the last command moves the folder out of it.
        path = parts.path.strip("/")
        download = f"az storage blob download-batch --source {shlex.quote(parts.netloc)} --pattern {shlex.quote(path + '/*')} --destination ."
        return f"{download} && mv {shlex.quote(path)} {folder}"
    return None


def download_commands(summary: Mapping[str, Any]) -> list[str]:
    """What is to be downloaded before the snippets work: adapter and base model, where they lie in a store."""
    commands = (download_command(summary["adapter_uri"]), download_command(summary["base_model"], BASE_FOLDER))
    return [command for command in commands if command]


def _base(summary: Mapping[str, Any]) -> str:
    """What transformers and vLLM call the base model: neither reads from a store."""
    name: str = summary["base_model"]
    return BASE_FOLDER if download_command(name, BASE_FOLDER) else name


def _base_arguments(summary: Mapping[str, Any]) -> str:
    """The arguments of from_pretrained for the base model."""
    revision = summary["base_revision"]
    return repr(_base(summary)) + (f", revision={revision!r}" if revision else "")


def peft_snippet(summary: Mapping[str, Any]) -> str:
    """Python that loads base model and adapter with transformers and PEFT."""
    arguments = _base_arguments(summary)
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
    return f"vllm serve {shlex.quote(_base(summary))}{revision} --enable-lora --max-lora-rank {rank} --lora-modules {module}"


def final_message(summary: Mapping[str, Any]) -> str:
    """The last lines of a run, from its run_summary.json: the adapter's URI, and how to load it with PEFT and with vLLM."""
    uri = summary["adapter_uri"]
    if uri is None:
        return "No adapter was published."
    return "\n".join(
        [
            *(f"Download  {command}" for command in download_commands(summary)),
            "PEFT      from peft import PeftModel; from transformers import AutoModelForCausalLM",
            f"          PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({_base_arguments(summary)}), {local_path(uri)!r})",
            f"vLLM      {vllm_command(summary)}",
            f"Adapter   {uri}",
        ]
    )
