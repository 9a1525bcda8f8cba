"""What a start would find in the job's store: a checkpoint to resume from, and room for new ones."""

from __future__ import annotations

from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.checkpoint.reader import Found
from lorarl_trainer.launch.resumption import changes_since_last_start
from lorarl_trainer.launch.room import room_lines
from lorarl_trainer.models.model_sizes import ModelSizes


def steps_left(job: LoRARLJob, newest: Found | None) -> int:
    """Return how many steps the next start makes, given the newest checkpoint."""
    return max(0, job.spec.trainer.steps - (newest.checkpoint.step if newest else 0))


def store_lines(job: LoRARLJob, sizes: ModelSizes, newest: Found | None, out_dir: Path) -> list[str]:
    """Return what the next start resumes from, what changed since the last one, and whether checkpoints have room."""
    changed = changes_since_last_start(out_dir, job)
    start = "from the base: there is no checkpoint of this job to resume from"
    if newest:
        start = f"resumes from {newest.uri}"
    if newest and (step := newest.checkpoint.step) >= (steps := job.spec.trainer.steps):
        start = (
            f"at its end: {newest.uri} is of step {step} of {steps}, so nothing is left to train.\n"
            "         To train longer, raise spec.trainer.steps. To start again, change metadata.name."
        )
    lines = [f"start    {start}", *([f"         changed: {', '.join(changed)}"] if newest and changed else [])]
    return [*lines, *(room_lines(job, sizes) if steps_left(job, newest) else [])]
