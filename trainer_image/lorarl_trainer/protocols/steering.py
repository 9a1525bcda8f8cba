"""What may change for a job while it runs. In a cluster, `pods.steering` looks; on one machine nothing changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Steering:
    """What a run should do from now on.

    Attributes:
        leaving: a worker's machine is about to be removed. The workers should publish a checkpoint and make room for
            others.
        asked: a drain of a node waits for a checkpoint of the present step.
        grows: there are machines for more workers, which start after the next checkpoint.
        warnings: what to tell the user, once each.
    """

    total_steps: int
    leaving: bool = False
    asked: bool = False
    grows: bool = False
    warnings: tuple[str, ...] = ()


type Steer = Callable[[int, bool], Awaitable[Steering]]
"""Asked once per step: how many steps the run makes in all so far, and whether it is already stopping."""
