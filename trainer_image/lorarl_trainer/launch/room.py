"""Whether a run's folder and the store of its checkpoints take the files that a run writes."""

from __future__ import annotations

from pathlib import Path
from shutil import disk_usage

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.errors import StorageError
from lorarl_trainer.models.model_sizes import ModelSizes
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.storage import LocalStore
from lorarl_trainer.storage.downloads import local_path
from lorarl_trainer.storage.local import free_bytes

LOGS = "logs"
"""Folder in a run's folder with what its processes print."""
_RUN_BYTES = 10_000_000
"""What a short run writes beside its checkpoints: metrics, samples, logs, TensorBoard's files and the report."""
_STATE_BYTES = 12
"""Of each trainable parameter: AdamW's two moments and the weight itself, in float32."""


def require_run_folder(out_dir: Path) -> None:
    """Check that a run can write its files. Nothing is written.

    Raises:
        StorageError: a folder or a log cannot be written, or the disk is full.
    """
    try:
        for folder in ("", LOGS):
            LocalStore(out_dir).require_writable(folder)
        for log in sorted((out_dir / LOGS).glob("*.log")):
            _require_appendable(log)
        if (free := free_bytes(out_dir.absolute())) < _RUN_BYTES:
            raise StorageError(_full(out_dir, "a run's own files need", _RUN_BYTES, free, "another folder"))
    except StorageError as error:
        raise StorageError(f"--out: {error}") from error


def _require_appendable(log: Path) -> None:
    try:
        log.open("ab").close()
    except OSError as error:
        raise StorageError(f"{log} cannot be written ({error.strerror}). Remove it, or use another folder.") from error


def require_room(job: LoRARLJob, sizes: ModelSizes) -> None:
    """Check that a checkpoint fits where checkpoints go, if that is on this machine.

    Raises:
        StorageError: there is room for none.
    """
    need = checkpoint_bytes(job, sizes)
    if (folder := checkpoint_folder(job)) and (free := free_bytes(folder)) < need:
        if holds_no_files(folder):
            raise StorageError(f"spec.checkpoint.uri: {folder} holds no files, as /proc. Use another folder.")
        hint = "another spec.checkpoint.uri"
        raise StorageError(f"spec.checkpoint.uri: {_full(folder, 'one checkpoint needs about', need, free, hint)}")


def room_lines(job: LoRARLJob, sizes: ModelSizes) -> list[str]:
    """Compare the checkpoints that are kept at a time with the free disk space, if they are on this machine."""
    if not (folder := checkpoint_folder(job)):
        return []
    size, free = checkpoint_bytes(job, sizes), free_bytes(folder)
    spec = job.spec.checkpoint
    made = max(1, job.spec.trainer.steps // (1 if spec.every_seconds else spec.every))
    kept = made if spec.keep_all else min(spec.keep + 1, made)  # a new one is whole before an old one goes
    of_them = f"{kept} checkpoint{'s' * (kept != 1)}"
    line = f"disk     {of_them} of about {in_words(size)}; {in_words(free)} are free in {folder}"
    short = "warning: the disk has too little space for them: spec.checkpoint.keep, every and uri decide that."
    return [line, *([short] if kept * size > free else [])]


def checkpoint_folder(job: LoRARLJob) -> Path | None:
    """Return the folder with the job's checkpoints; None if they are not on this machine."""
    uri = job.spec.checkpoint.uri
    return local_path(uri, "spec.checkpoint.uri").absolute() if uri.startswith("file:") else None


def checkpoint_bytes(job: LoRARLJob, sizes: ModelSizes) -> int:
    """Return about how many bytes a checkpoint has: the adapter in the job's precision, and the training state.

    The state has a critic's adapter too, and the average of adapters that a KL penalty may refer to.
    """
    spec = job.spec
    trained = AdapterSize.of(spec.adapter, sizes).written()
    state = _STATE_BYTES * (1 + spec.algorithm.about.critic) + 4 * (spec.reference == "average")
    return trained * (state + (4 if spec.precision == "fp32" else 2))


def in_words(count: int) -> str:
    """Return a number of bytes for people."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def holds_no_files(folder: Path) -> bool:
    """Return whether a folder is, or would be, in a file system without any space, as /proc."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return disk_usage(there).total == 0


def _full(folder: Path, what: str, need: int, free: int, other: str) -> str:
    return f"{folder}: the disk is full: {what} {in_words(need)}, {in_words(free)} are free. Free some, or use {other}."
