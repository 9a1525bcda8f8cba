"""Why the workers of a run end before the run does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkersLost:
    """Workers are lost or about to be. The run waits for others, and continues from its newest checkpoint."""

    text: str


@dataclass(frozen=True, slots=True)
class MoreWorkers:
    """There are machines for more workers. The present ones end, and all continue from the newest checkpoint."""

    text: str
