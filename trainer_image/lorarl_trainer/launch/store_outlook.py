"""What a start would find in the job's store: a checkpoint to resume from, and room for new ones."""

from __future__ import annotations

from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.launch.resumption import changes_since_last_start, newest_checkpoint
from lorarl_trainer.planning.model_sizes import ModelSizes
from lorarl_trainer.storage.downloads import local_path
from lorarl_trainer.storage.local import free_bytes
from lorarl_trainer.storage.secrets import Secrets

_STATE_BYTES = 12
"""Of each trainable parameter: AdamW's two moments and the weight itself, in float32."""


def store_lines(job: LoRARLJob, sizes: ModelSizes, secrets: Secrets, out_dir: Path, unpublished: Path) -> list[str]:
    """Return what the next start resumes from, what changed since the last one, and whether checkpoints have room.

    Raises:
        LorarlError: the store does not answer.
    """
    newest, changed = newest_checkpoint(job, secrets, unpublished), changes_since_last_start(out_dir, job)
    start = f"resumes from {newest}" if newest else "from the base: there is no checkpoint of this job to resume from"
    lines = [f"start    {start}", *([f"         changed: {', '.join(changed)}"] if newest and changed else [])]
    return [*lines, *_room(job, checkpoint_bytes(job, sizes))]


def checkpoint_bytes(job: LoRARLJob, sizes: ModelSizes) -> int:
    """Return about how many bytes a checkpoint has: the adapter in the job's precision, and the training state."""
    adapter = job.spec.adapter
    trainable = sum(adapter.rank * (linear.inputs + linear.outputs) for linear in sizes.adapted(adapter))
    return trainable * (_STATE_BYTES + (4 if job.spec.precision == "fp32" else 2))


def _room(job: LoRARLJob, size: int) -> list[str]:
    """Compare the checkpoints that are kept at a time with the free disk space, if they are on this machine."""
    if not job.spec.checkpoint.uri.startswith("file:"):
        return []
    folder = local_path(job.spec.checkpoint.uri, "spec.checkpoint.uri").absolute()
    free = free_bytes(folder)
    spec, made = job.spec.checkpoint, max(1, job.spec.trainer.steps // job.spec.checkpoint.every)
    kept = made if spec.keep_all else min(spec.keep + 1, made)  # a new one is whole before an old one goes
    line = f"disk     {kept} checkpoints of about {_size(size)}; {_size(free)} are free in {folder}"
    short = "warning: the disk has too little space for them: spec.checkpoint.keep, every and uri decide that."
    return [line, *([short] if kept * size > free else [])]


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
