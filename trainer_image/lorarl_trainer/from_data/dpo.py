"""Preference pairs as a source of samples: the chosen and the rejected answers of the data, without rollouts.

Shape suffixes: P pairs, S = 2 P samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.from_data.rows import DataRows
from lorarl_trainer.progress import EvalDone
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.samples.requests import LossChoice
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.statistics import estimate


@dataclass
class Pairs(DataRows):
    """The next rows' pairs."""

    loss: LossChoice

    async def next(self, step: int, adapter_version: int) -> StepBatch:
        """Return the next pairs. A group is a pair: the chosen answer has reward 1, the rejected one 0."""
        samples_S = samples_of(self.rows.next(self.rows_per_step))
        rewards_P_2 = np.tile([1.0, 0.0], (len(samples_S) // 2, 1))
        return StepBatch(samples_S, rewards_P_2, temperature=1.0, on_policy=False)

    async def _evaluate(self, rows: Sequence[EncodedRow], step: int) -> EvalDone:
        """Return the share of pairs whose chosen answer has the larger implicit reward; equal ones count half.

        `margin` is the difference of the two rewards, see `losses.preference`.
        """
        samples_S = samples_of(rows)
        policy = await self.workers.log_probabilities(samples_S, temperature=1.0)
        reference = await self.workers.log_probabilities(samples_S, temperature=1.0, of="reference")
        margins_P = self.loss.beta * np.array(list(_margins(policy, reference)))
        right = estimate((margins_P > 0) + 0.5 * (margins_P == 0))
        margin = estimate(margins_P)
        ends = {
            f"{column}_{end}": value
            for column, of in (("score", right), ("margin", margin))
            for end, value in (("low", of.low), ("high", of.high))
            if value is not None
        }
        return EvalDone(
            step=step,
            rows=len(margins_P),
            score=right.mean,
            metrics={"margin": margin.mean, **ends},
        )


def samples_of(rows: Sequence[EncodedRow]) -> list[Sample]:
    """Return the samples of pairs, [S]: of each row the chosen answer, then the rejected one."""
    return [
        Sample(np.asarray([*row.prompt_ids, *answer]), len(row.prompt_ids), pair=number)
        for number, row in enumerate(rows)
        for answer in (row.answer_ids, row.rejected_ids)
    ]


def _margins(policy_S: Sequence[Floats], reference_S: Sequence[Floats]) -> Iterator[float]:
    """Yield the difference of each pair's log-ratios, in nats."""
    ratios_S = [
        float((mine.astype(np.float64) - other).sum()) for mine, other in zip(policy_S, reference_S, strict=True)
    ]
    return (chosen - rejected for chosen, rejected in zip(ratios_S[::2], ratios_S[1::2], strict=True))
