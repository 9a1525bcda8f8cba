"""Curriculum by pass rate: rows that teach most come up most often.

A group teaches by the differences between its completions. With the pass rate p, the variance of "it passes" is
p (1 - p): largest where half of the completions pass, and 0 where all do or none does.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lorarl_api.v1alpha1 import CurriculumSpec
from lorarl_trainer.samples.rounding import reached
from lorarl_trainer.schedule import seed_of

_SEEDS = 2**56
"""Number of values of `seed_of`."""


def share_of_turns(pass_rate: float | None, least: float) -> float:
    """Return the share of its turns that a row takes: 4 p (1 - p), but at least `least`, and 1 if p is not known."""
    return 1.0 if pass_rate is None else max(least, 4 * pass_rate * (1 - pass_rate))


def takes_turn(pass_rate: float | None, least: float, seed: int, position: int) -> bool:
    """Return whether a row takes its turn at a position of the order. Equal arguments have equal answers."""
    return seed_of(seed, "curriculum", position) < share_of_turns(pass_rate, least) * _SEEDS


def pass_rate_after(before: float | None, rewards_G: npt.NDArray[np.float64], pass_reward: float) -> float | None:
    """Return a row's pass rate after one more group: halfway from the rate before to the group's own.

    So older groups, of an older policy, weigh less and less. Completions without a score, NaN, do not count.
    """
    scored = rewards_G[~np.isnan(rewards_G)]
    if not len(scored):
        return before
    now = float(np.mean(reached(scored, pass_reward)))
    return now if before is None else (before + now) / 2


def row_key(tokens: Sequence[int], answer: str | None) -> str:
    """Return a short text that is the same for a row with the same prompt and answer alone."""
    return hashlib.sha256(json.dumps([list(tokens), answer]).encode()).hexdigest()[:12]


class Curriculum:
    """The pass rates of rows, by their index, and which of them take their turn."""

    def __init__(
        self, spec: CurriculumSpec, seed: int, rows: Sequence[str], resumed: Mapping[str, Any] | None = None
    ) -> None:
        """Begin, or continue with the `state` of a checkpoint.

        `rows`: a text for each row that says which one it is, as `row_key`. Rates of other rows are dropped.
        `resumed`: that state; None to begin.
        """
        self._spec, self._seed, self._rows = spec, seed, rows
        known, keys = (resumed["rates"], resumed["rows"]) if resumed else ({}, {})
        self._rates: dict[int, float] = {
            int(row): rate for row, rate in known.items() if int(row) < len(rows) and rows[int(row)] == keys[row]
        }

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, JSON."""
        rates = {str(row): rate for row, rate in sorted(self._rates.items())}
        return {"rates": rates, "rows": {row: self._rows[int(row)] for row in rates}}

    def takes(self, row: int, position: int) -> bool:
        """Return whether a row takes its turn at a position of the order."""
        return takes_turn(self._rates.get(row), self._spec.least_share, self._seed, position)

    def record(self, rows_P: Sequence[int], rewards_P_G: npt.NDArray[np.float64]) -> None:
        """Learn the rewards of the groups of some rows, in the order in which they were drawn."""
        for row, rewards_G in zip(rows_P, rewards_P_G, strict=True):
            rate = pass_rate_after(self._rates.get(row), rewards_G, self._spec.pass_reward)
            if rate is not None:
                self._rates[row] = rate

    def metrics(self) -> dict[str, float]:
        """Return columns of metrics.jsonl.

        curriculum/pass_rate: mean over the rows with a known one; absent if none is known.
        curriculum/known_share: share of rows with a known pass rate, 0 to 1.
        """
        rates = list(self._rates.values())
        mean = {"curriculum/pass_rate": math.fsum(rates) / len(rates)} if rates else {}
        return mean | {"curriculum/known_share": len(rates) / len(self._rows)}
