"""Finds an adapter: a folder or URI with a PEFT adapter, or the folder of a run."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJob, Quantization
from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.lora.files import CONFIG_FILE, METADATA_FILE, QUANTIZATION, WEIGHTS_FILE
from lorarl_trainer.progress import show_downloads
from lorarl_trainer.progress.metrics_file import SUMMARY, read_summary
from lorarl_trainer.progress.runs import early_failure_of, run_folder
from lorarl_trainer.storage import open_store
from lorarl_trainer.storage.base_model import fetch_model_folder
from lorarl_trainer.storage.downloads import cache_dir, local_path
from lorarl_trainer.storage.fingerprint import fingerprint
from lorarl_trainer.storage.secrets import Secrets, secret_of, secrets_on_demand

Checkpoint = Literal["best", "newest"]
ARGUMENT = "ADAPTER"
READS = (
    "spec.checkpoint.credentialsSecret",
    "spec.cluster.gpusPerNode",
    "spec.data.chatTemplate",
    "spec.data.chatTemplateFile",
    "spec.data.credentialsSecret",
    "spec.model.credentialsSecret",
    "spec.model.revision",
    "spec.model.uri",
    "spec.trainer.precision",
)
"""What finding and loading an adapter reads of its job. The adapter's own files say how it was trained."""
_EXPECTED = "the folder or URI of a PEFT adapter, or a run: its folder, or its job's name under out/"


@dataclass(frozen=True)
class Source:
    """An adapter and its base model on this machine.

    Attributes:
        name: what the user called it.
        adapter: PEFT's folder.
        base: the base model's folder, or its name on the hub.
        revision: the base model's commit, if the adapter names one.
        job: the job that trained it, if that is known.
        folder: of the job's manifest, where its reward may be.
        which: which of a run's checkpoints it is, in words; empty for an adapter that was named itself.
        best_by: the column of metrics.jsonl by which it was chosen as the best; None if it was not.
    """

    name: str
    adapter: Path
    base: str
    revision: str | None
    job: LoRARLJob | None
    folder: Path
    which: str = ""
    best_by: str | None = None

    @property
    def quantization(self) -> Quantization:
        """How the base was quantized that the adapter was trained on.

        Raises:
            InputError: in a way that this version does not know.
        """
        said = _metadata(self.adapter).get(QUANTIZATION, "none")
        if said not in get_args(Quantization):
            raise InputError(
                ARGUMENT,
                f"{self.name}, whose {METADATA_FILE} has {QUANTIZATION} {said}",
                f"one of {', '.join(get_args(Quantization))}",
                "Use the version of lorarl that trained it, or a later one.",
            )
        quantization: Quantization = said
        return quantization

    @property
    def label(self) -> str:
        """What the user called it, and which checkpoint that is."""
        return f"{self.name} ({self.which})" if self.which else self.name

    @property
    def chats(self) -> bool:
        """Whether a chat template, if there is one, is a part of what the adapter was trained on."""
        return self.job is None or self.job.spec.data.chat_template

    def base_folder(self) -> Path:
        """The base model's files on this machine, once it was loaded."""
        from huggingface_hub import snapshot_download

        if (folder := Path(self.base)).is_dir():
            return folder
        return Path(snapshot_download(self.base, revision=self.revision, local_files_only=True))


def find_adapter(
    name: str,
    job_file: Path | None,
    overrides: Sequence[str],
    base: str | None = None,
    checkpoint: Checkpoint | None = None,
    reads: Collection[str] = READS,
) -> Source:
    """Find an adapter and its base model; fetch them if they are elsewhere.

    Args:
        name: a folder, a file: or remote URI, a run's folder, or the name of a run's job.
        job_file: the manifest of the job; None takes the one that a run's folder has.
        overrides: assignments that change the manifest.
        base: the base model's folder or name, in place of the one that the adapter names.
        checkpoint: which of a run's; None for the best one if the run chose one, otherwise the newest.
        reads: what of the job its caller looks at.

    Raises:
        LorarlError: there is no such adapter or base model.
        ManifestError: the manifest has faults, or `overrides` change what is not read.
    """
    run, named = run_folder(name), base is not None
    if run is None and (failure := early_failure_of(name)):
        raise InputError(ARGUMENT, f"{name}, a run that failed before it trained", _EXPECTED, failure)
    summary = _summary(run) if run else None
    best = _best(summary, name, checkpoint)
    uri = name if summary is None else str((best or {}).get("uri") or summary.get("adapter_uri") or "")
    if not uri:
        raise LorarlError(f"{name}: this run has published no adapter yet. Its checkpoints appear every few steps.")
    manifest = job_file or (str(summary["manifest"]) if summary else None)
    if overrides and not manifest:
        got = f"{', '.join(overrides)} for {name}, an adapter without a job's manifest"
        raise InputError("--set", got, "a manifest that it changes", "Name the manifest with --job, or leave it out.")
    job = load_job(manifest, overrides, reads) if manifest else None
    secrets = secrets_on_demand(job.spec) if job else {}
    folder = _adapter_folder(uri, secrets, job)
    if summary and not folder.is_dir():
        raise _gone(name, folder)
    config = _config(folder, uri, names_base=not base and job is None)
    if base:
        _require_folder_or_name(base)
    base = base or (_base_of(job, secrets) if job else str(config["base_model_name_or_path"]))
    for warning in _other_base(folder, base):
        print(f"warning: {warning}", file=sys.stderr)
    return Source(
        name=name,
        adapter=folder,
        base=base,
        revision=None if named or job else config.get("revision"),
        job=job,
        folder=job_file.parent if job_file else Path((summary or {}).get("manifest_folder") or Path.cwd()),
        which=_which(uri, best) if summary else "",
        best_by=str(best["metric"]) if best else None,
    )


def _best(summary: Mapping[str, Any] | None, name: str, checkpoint: Checkpoint | None) -> Mapping[str, Any] | None:
    """Return the best checkpoint of a run's summary; None if there is none, or if it was not asked for."""
    if checkpoint and summary is None:
        got = f"{checkpoint}, but {name} is one adapter"
        raise InputError("--checkpoint", got, "the folder of a run", "Leave --checkpoint out.")
    best: Mapping[str, Any] | None = (summary or {}).get("best")
    if checkpoint == "best" and best is None:
        hint = "Leave --checkpoint out to use the newest one."
        raise InputError("--checkpoint", f"best, but {name} chose none", "a run with spec.checkpoint.keepBest", hint)
    return None if checkpoint == "newest" else best


def _which(uri: str, best: Mapping[str, Any] | None) -> str:
    if best:
        return f"the best checkpoint, of step {best['step']}: {best['metric']} {best['value']:.4g}"
    step = re.search(r"iter_(\d+)", uri)
    return f"the newest checkpoint, of step {int(step[1])}" if step else "the newest checkpoint"


def _base_of(job: LoRARLJob, secrets: Secrets) -> str:
    with show_downloads(sys.stderr) as on_bytes:
        return str(fetch_model_folder(job.spec, secrets, on_bytes=on_bytes))


def _summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a run's folder."""
    try:
        return read_summary(folder, ["manifest"])
    except ValueError as error:
        raise _not_an_adapter(f"{folder}, whose {SUMMARY} cannot be read ({error})") from error


def _adapter_folder(uri: str, secrets: Secrets, job: LoRARLJob | None) -> Path:
    """Return the local folder of an adapter; a checkpoint's folder has it in lora_adapter."""
    if "://" in uri and not uri.startswith("file:"):
        store = open_store(
            uri, secret_of(secrets, job.spec.checkpoint.credentials_secret) if job else {}, field=ARGUMENT
        )
        folder = cache_dir() / "adapters" / uri.replace("://", "/")
        if not store.download("", folder):
            raise _not_an_adapter(f"{uri}, which contains nothing")
        return folder
    folder = local_path(uri, ARGUMENT) if uri.startswith("file:") else Path(uri)
    inner = folder / "lora_adapter"
    return inner if inner.is_dir() and not (folder / CONFIG_FILE).exists() else folder


def _config(folder: Path, name: str, *, names_base: bool) -> Mapping[str, Any]:
    """Return its configuration; `names_base` says whether that has to name the base model."""
    if not folder.is_dir():
        raise _not_an_adapter(f"{name}, which is not a folder")
    for file in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / file).is_file():
            raise _not_an_adapter(f"{name}, which contains no {file}")
    try:
        config: Mapping[str, Any] = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        if not config["peft_type"]:
            raise KeyError("peft_type")
        unnamed = not config.get("base_model_name_or_path")
    except (ValueError, KeyError, TypeError) as error:
        raise _not_an_adapter(
            f"{name}, whose {CONFIG_FILE} cannot be used ({type(error).__name__}: {error})"
        ) from error
    if unnamed and names_base:
        got = f"{name}, whose {CONFIG_FILE} names no base model"
        raise InputError(ARGUMENT, got, "base_model_name_or_path", "Name the base model's folder with --base.")
    _require_safetensors(folder / WEIGHTS_FILE, name)
    return config


def _require_safetensors(file: Path, name: str) -> None:
    """Refuse weights that are not a whole file. Their header says how long they are."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy"):
            return
    except (SafetensorError, OSError) as error:
        raise InputError(
            ARGUMENT,
            f"{name}, whose {WEIGHTS_FILE} cannot be read ({error})",
            "a whole safetensors file",
            "Copy or download the adapter again, or name another checkpoint.",
        ) from error


def _gone(name: str, folder: Path) -> InputError:
    checkpoint = folder.parent if folder.name == "lora_adapter" else folder
    others = sorted(path for path in checkpoint.parent.glob("iter_*") if (path / "lora_adapter").is_dir())
    hint = f"Name another checkpoint: {others[-1]}." if others else "No other checkpoint is beside it."
    return InputError(ARGUMENT, f"{name}, whose checkpoint {checkpoint} is gone", "a checkpoint that is there", hint)


def _require_folder_or_name(base: str) -> None:
    """Refuse a path without a folder. As a name, the hub would be asked for it, many times if it cannot be reached."""
    is_path = base.startswith((".", "/", "~")) or base.count("/") != 1 or Path(base).parent.is_dir()
    if is_path and not Path(base).is_dir() and ("/" in base or "." in base):
        expected = "a folder with a model, or ORG/NAME on the hub"
        raise InputError("--base", f"{base}, which is no folder", expected, "Check the path.")


def _other_base(adapter: Path, base: str) -> list[str]:
    """Return a warning if a base model on this machine is not the one that the adapter was trained on."""
    try:
        trained_on = _metadata(adapter)["baseModelFingerprint"]
        if not Path(base).is_dir() or trained_on == fingerprint(Path(base)):
            return []
    except (OSError, KeyError, LorarlError):
        return []  # an adapter of another program; a model that cannot be read fails where it is loaded
    return [
        f"{base} is not the base model that this adapter was trained on: their fingerprints differ. What the adapter "
        "does on it says nothing about the training."
    ]


def _metadata(adapter: Path) -> dict[str, Any]:
    """Return what lorarl says of an adapter; nothing of one of another program."""
    try:
        return dict(json.loads((adapter / METADATA_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _not_an_adapter(got: str) -> InputError:
    return InputError(ARGUMENT, got, _EXPECTED, "Name a folder that lorarl, or PEFT's save_pretrained, wrote.")
