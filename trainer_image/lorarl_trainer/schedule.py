"""Functions of the step alone: the learning rate, and the seeds of sampling and dropout.

Because the seeds depend only on the step, resuming needs no random state.
"""

from __future__ import annotations

import hashlib

from lorarl_api.v1alpha1 import TrainerSpec


def learning_rate(spec: TrainerSpec, step: int) -> float:
    """Return the learning rate of a step, counted from 1: linear warm-up, then constant."""
    return spec.learning_rate * min(1.0, step / spec.warmup_steps if spec.warmup_steps else 1.0)


def seed_of(seed: int, purpose: str, *numbers: int) -> int:
    """Return a seed of 56 bits for one purpose and the numbers of a step or sample. It is the same on every machine."""
    text = "/".join([str(seed), purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())


def is_due(step: int, every: int, last: int) -> bool:
    """Return whether something that happens every `every` steps and after the last step is due after this step."""
    return step % every == 0 or step >= last  # the step is after `last` if `trainer.steps` was lowered during the run
