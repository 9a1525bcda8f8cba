"""What the raw figures of the recipes say: held-out curves over seeds, and the time to a score. Pure functions."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

type Run = Mapping[str, Any]

SHARE_OF_GAIN = 0.9
"""Times are compared at this share of what the weaker system gains in the end."""


@dataclass(frozen=True)
class Curve:
    """The held-out accuracy of one system on one recipe, by measured step: the mean over its seeds, and their range.

    Attributes:
        seconds: training time up to that step, from the end of the first one, which loads the task's scorer and
            compiles kernels. The mean over the seeds that had a GPU to themselves; empty if none had.
        right: share of right answers, 0 to 1.
    """

    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    right: tuple[float, ...]
    least: tuple[float, ...]
    most: tuple[float, ...]

    @property
    def base(self) -> float:
        """The base model's accuracy."""
        return self.right[0]

    @property
    def final(self) -> float:
        """The accuracy after the last step."""
        return self.right[-1]


def curve(runs: Sequence[Run]) -> Curve:
    """Return the curve of one system's runs on one recipe, a run per seed.

    Raises:
        ValueError: there are none, or they were measured at different steps.
    """
    measured = {tuple(found["step"] for found in run["held_out"]) for run in runs}
    if len(measured) != 1:
        raise ValueError(f"the runs were measured at {sorted(measured)}, expected the same steps for all")
    (steps,) = measured
    right = [[found["right"] for found in run["held_out"]] for run in runs]
    passed = [[0.0, 0.0, *itertools.accumulate(_later_seconds(run))] for run in alone(runs)]
    by_step = list(zip(*right, strict=True))
    return Curve(
        steps=steps,
        seconds=tuple(statistics.fmean(run[step] for run in passed) for step in steps) if passed else (),
        right=tuple(map(statistics.fmean, by_step)),
        least=tuple(map(min, by_step)),
        most=tuple(map(max, by_step)),
    )


def alone(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that had a GPU to themselves. Only their times say anything."""
    return [run for run in runs if run.get("at_once", 1) == 1]


def common_score(one: Curve, other: Curve) -> float:
    """Return an accuracy that both curves reach, near the end of the one that gains less."""
    base = (one.base + other.base) / 2
    return base + SHARE_OF_GAIN * (min(one.final, other.final) - base)


def seconds_to(curve: Curve, score: float) -> float | None:
    """Return the training seconds until the mean first reaches a score, on straight lines between measurements."""
    if curve.right[0] >= score:
        return 0.0
    points = list(zip(curve.seconds, curve.right, strict=True))
    for (before, low), (after, high) in itertools.pairwise(points):
        if high >= score:
            return before + (after - before) * (score - low) / (high - low)
    return None


def mean_start(runs: Sequence[Run]) -> float:
    """Return the mean seconds of a run from the command to the end of the first step, and of the process' end."""
    return statistics.fmean(run["start_seconds"] + run["steps"][0]["seconds"] for run in runs)


def mean_step(runs: Sequence[Run]) -> float:
    """Return the mean seconds of a step after the first."""
    return statistics.fmean(seconds for run in runs for seconds in _later_seconds(run))


def _later_seconds(run: Run) -> list[float]:
    return [step["seconds"] for step in run["steps"][1:]]


def drift(runs: Sequence[Run]) -> tuple[float, float] | None:
    """Return how far vLLM's and the trainer's log-probabilities differ, in nats: first and last steps' means.

    None if the system does not report it.
    """
    reported = [[step["drift"] for step in run["steps"]] for run in runs if "drift" in run["steps"][0]]
    if not reported:
        return None
    return statistics.fmean(run[0] for run in reported), statistics.fmean(run[-1] for run in reported)
