"""How a critic learns, as it travels between the driver and the workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CriticChoice:
    """How a critic becomes advantages, and how it learns.

    Attributes:
        discount: what a reward is worth one token earlier (gamma).
        trace: how far advantages look beyond the next value (lambda).
        clip_range: how far one step may move a value before it stops to learn.
        learning_rate: its peak; None for the policy's.
        warmup_steps: first steps, in which it learns alone: the policy's schedule and KL weight do not count them.
    """

    discount: float
    trace: float
    clip_range: float
    learning_rate: float | None
    warmup_steps: int

    def learns_alone(self, step: int) -> bool:
        """Return whether the policy stays as it is in a step, counted from 1."""
        return step <= self.warmup_steps


@dataclass(frozen=True)
class CriticUpdate:
    """One optimizer update of the critic.

    Attributes:
        clip_range: see `CriticChoice`.
        alone: the policy stays as it is. Its loss is measured only.
    """

    learning_rate: float
    clip_range: float
    alone: bool
