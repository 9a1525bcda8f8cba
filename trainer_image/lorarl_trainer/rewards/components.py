"""The components of rewards over the completions of a step or an evaluation: their means, and odd names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lorarl_trainer.rewards.scores import Outcome
from lorarl_trainer.samples.columns import COMPONENT

MOST_NAMES = 64
"""Names that a step may record. Names made of the data, such as a row's id, would fill the trackers with curves."""


def component_metrics(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the mean of each component as a metric, over the scored completions that have it."""
    values: dict[str, list[float]] = {}
    for outcome in _scored(outcomes):
        for name, value in outcome.components.items():
            if name in values or len(values) < MOST_NAMES:
                values.setdefault(name, []).append(value)
    return {f"{COMPONENT}{name}": sum(found) / len(found) for name, found in values.items()}


def odd_components(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, str]]:
    """Yield what a user should know about the names, as (kind, warning)."""
    scored = list(_scored(outcomes))
    reasons = [found for outcome in scored for found in outcome.unrecorded.items()]
    failing = dict(reversed(reasons))  # the first reason of each
    for reward, reason in failing.items():
        count = sum(reward in outcome.unrecorded for outcome in scored)
        yield (
            f"unrecorded {reward}",
            f"the reward {reward}, which has weight 0, failed for {count} of {len(scored)} completions ({reason}). "
            "They are trained on, and its mean is over the others.",
        )
    counts: dict[str, int] = {}
    for outcome in scored:
        for name in outcome.components:
            counts[name] = counts.get(name, 0) + 1
    if len(counts) > MOST_NAMES:
        yield (
            "names",
            f"the reward returned {len(counts)} names of components in one step; the first {MOST_NAMES} are recorded. "
            "Return the same names for each completion.",
        )
        return
    partial = {
        name: count for name, count in counts.items() if count < len(scored) and name.partition("/")[0] not in failing
    }
    if partial:
        name, count = next(iter(partial.items()))
        others = f", and {len(partial) - 1} more" if len(partial) > 1 else ""
        yield (
            "partial",
            f"{count} of {len(scored)} completions have the component {name!r} of the reward{others}. "
            "Its mean is over those; return it for each completion to compare steps.",
        )


def _scored(outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
    return (outcome for outcome in outcomes if outcome.cause is None)
