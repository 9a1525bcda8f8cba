"""Functions of the step alone: the learning rate, and the seeds of sampling and dropout.

Because the seeds depend only on the step, resuming needs no random state.
"""

from __future__ import annotations

import hashlib
import math

from lorarl_api.v1alpha1 import DataSpec, TrainerSpec


def learning_rate(spec: TrainerSpec, step: int, last: int, skipped: int = 0) -> float:
    """Return the learning rate of a step, counted from 1: linear warm-up, then the schedule.

    The first step after the warm-up has the peak (without a warm-up, the first step), and the last step has the minimum
    share of it. The cosine is that of SGDR (arXiv:1608.03983) without restarts.

    `last`: the last step, which may change during a run. Steps after it have the minimum. `skipped`: first steps that
    the schedule does not count. Their rate is 0.
    """
    step, last = step - skipped, last - skipped
    if step < 1:
        return 0.0
    if step < spec.warmup_steps:
        return spec.learning_rate * (step / spec.warmup_steps)
    if spec.learning_rate_schedule == "constant":
        return spec.learning_rate
    first = max(spec.warmup_steps, 1)
    done = min(1.0, (step - first) / (last - first)) if last > first else 0.0
    share = 1 - done if spec.learning_rate_schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    least = spec.min_learning_rate_share
    return spec.learning_rate * (least + (1 - least) * share)


def seed_of(seed: int, purpose: str, *numbers: int) -> int:
    """Return a seed of 56 bits for one purpose and the numbers of a step or sample. It is the same on every machine."""
    text = "/".join([str(seed), purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())


def is_due(step: int, every: int, last: int) -> bool:
    """Return whether something that happens every `every` steps and after the last step is due after this step."""
    return step % every == 0 or step >= last  # the step is after `last` if `trainer.steps` was lowered during the run


def evaluations_due(data: DataSpec, step: int, last: int) -> list[str]:
    """Return the names of the evaluations that a step has, in the order of `data.evaluations`."""
    return [name for name, source in data.evaluations if is_due(step, source.every, last)]
