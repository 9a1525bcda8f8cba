"""How full an engine was while it generated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Occupancy:
    """Counts over the engine's steps of one generation.

    Attributes:
        steps: forward passes of the engine.
        running: sequences in each step, summed up.
        waiting: sequences that waited for room at each step, summed up.
        kv_cache_peak: the largest share of the KV cache's blocks that was in use, 0 to 1.
        preemptions: how many times a sequence gave its blocks up and waited again.
    """

    steps: int = 0
    running: int = 0
    waiting: int = 0
    kv_cache_peak: float = 0.0
    preemptions: int = 0

    def add_step(self, running: int, waiting: int, kv_cache: float) -> None:
        """Count a step with so many sequences running and waiting, and such a share of the KV cache in use."""
        self.steps += 1
        self.running += running
        self.waiting += waiting
        self.kv_cache_peak = max(self.kv_cache_peak, kv_cache)

    @classmethod
    def over(cls, engines: Iterable[Occupancy]) -> Occupancy:
        """Return what several engines counted, as one."""
        whole = cls()
        for one in engines:
            whole.steps += one.steps
            whole.running += one.running
            whole.waiting += one.waiting
            whole.kv_cache_peak = max(whole.kv_cache_peak, one.kv_cache_peak)
            whole.preemptions += one.preemptions
        return whole

    def metrics(self) -> dict[str, float]:
        """Return the metrics of a step of training.

        engine/running, engine/waiting: sequences that an engine generates, and that wait for room, mean over its
        steps. engine/kv_cache: the largest share of its KV cache in use, 0 to 1. engine/preemptions: how many times a
        sequence gave its room up for older ones and continued later.
        """
        if not self.steps:
            return {}
        return {
            "engine/running": self.running / self.steps,
            "engine/waiting": self.waiting / self.steps,
            "engine/kv_cache": self.kv_cache_peak,
            "engine/preemptions": float(self.preemptions),
        }
