"""What depends on the step alone: the learning rate, and the seeds of sampling and of dropout. Resuming needs no random state."""

from __future__ import annotations

import hashlib

from lorarl_api.v1alpha1 import TrainerSpec


def learning_rate(spec: TrainerSpec, step: int) -> float:
    """Return the learning rate of a step (from 1): linear warm-up, then constant."""
    return spec.learning_rate * min(1.0, step / spec.warmup_steps if spec.warmup_steps else 1.0)


def seed_of(seed: int, purpose: str, *numbers: int) -> int:
    """Return a seed of 56 bits for one purpose at one place of the run (a step, a sample): the same on every machine."""
    text = "/".join([str(seed), purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())


def is_due(step: int, every: int, last: int) -> bool:
    """Return whether what happens every so many steps, and after the last, happens after this step."""
    return step % every == 0 or step >= last  # past it where `trainer.steps` was lowered meanwhile
