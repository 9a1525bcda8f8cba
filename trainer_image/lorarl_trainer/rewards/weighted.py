"""Several rewards as one: the score is their weighted sum, and each is a component of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lorarl_trainer.rewards.scores import Outcome, Scorer, ToScore


@dataclass(frozen=True)
class Part:
    """One of several rewards.

    Attributes:
        path: its path in the manifest (`spec.rewards[0]`).
        name: its name among the components.
    """

    path: str
    name: str
    weight: float
    scorer: Scorer


class WeightedScorer:
    """Scores by all rewards at the same time."""

    field = "spec.rewards"

    def __init__(self, parts: Sequence[Part]) -> None:
        """Take the rewards, at least one."""
        self._parts = parts

    def warm_up(self) -> None:
        """Start what the rewards need."""
        for part in self._parts:
            part.scorer.warm_up()

    async def ready(self) -> None:
        """Wait until each reward is ready. Raises InputError if one never can be."""
        await asyncio.gather(*(part.scorer.ready() for part in self._parts))

    async def score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        """Score samples. More may be given meanwhile."""
        by_part = await asyncio.gather(*(part.scorer.score(samples) for part in self._parts))
        return [weighted_sum(self._parts, outcomes) for outcomes in zip(*by_part, strict=True)]

    def close(self) -> None:
        """End all rewards' processes."""
        for part in self._parts:
            part.scorer.close()


def weighted_sum(parts: Sequence[Part], outcomes: Sequence[Outcome]) -> Outcome:
    """Combine the outcomes of one completion, one of each reward.

    A component is a reward before its weight; the components of a reward that returned a mapping follow as NAME/THEIRS.
    If a reward fails, there is no score: a sum without one of its terms would compare the completions of a group by
    different measures. The first such reward is the one that counts as failed. A reward with weight 0 changes no sum,
    so its failure only costs its component.
    """
    for part, outcome in zip(parts, outcomes, strict=True):
        if outcome.cause is not None and part.weight != 0:
            return replace(outcome, message=f"{part.name}: {outcome.message}", reward=part.path)
    scored = [(part, outcome) for part, outcome in zip(parts, outcomes, strict=True) if outcome.cause is None]
    components: dict[str, float] = {}
    for part, outcome in scored:
        components[part.name] = outcome.value
        components |= {f"{part.name}/{name}": value for name, value in outcome.components.items()}
    total = sum(part.weight * outcome.value for part, outcome in scored)
    if not math.isfinite(total):
        return Outcome.failed("non_finite", f"the weighted sum is {total}")
    unrecorded = {
        part.name: f"{outcome.cause}: {outcome.message}"
        for part, outcome in zip(parts, outcomes, strict=True)
        if outcome.cause is not None
    }
    return Outcome(total, components=components, unrecorded=unrecorded)
