"""Where a step's time goes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from lorarl_trainer.progress import StepDone


class StepClock:
    """The seconds of a step: phases that workers measured, phases timed here, and the rest as `other`."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._phases: dict[str, float] = {}

    def add(self, phase: str, seconds: float) -> None:
        """Count seconds that a worker measured."""
        self._phases[phase] = self._phases.get(phase, 0.0) + seconds

    def add_all(self, phases: Mapping[str, float]) -> None:
        """Count the seconds of several phases."""
        for phase, seconds in phases.items():
            self.add(phase, seconds)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block."""
        start = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - start)

    def finish(self, step: StepDone) -> StepDone:
        """Return the step with its seconds by phase, which add up to the whole, and its speed."""
        elapsed = time.perf_counter() - self._start
        seconds = self._phases | {"other": max(0.0, elapsed - sum(self._phases.values()))}
        return replace(step, seconds=seconds, tokens_per_second=step.tokens / sum(seconds.values()))
