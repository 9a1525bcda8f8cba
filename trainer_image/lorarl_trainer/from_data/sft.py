"""Supervised fine-tuning as a source of samples: the data's own answers, without rollouts or a reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.from_data.rows import DataRows
from lorarl_trainer.progress import EvalDone
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.statistics import ratio_interval


@dataclass
class Answers(DataRows):
    """The next rows' own answers."""

    async def next(self, step: int, adapter_version: int) -> StepBatch:
        """Return the next rows; each answer is as good as any other."""
        samples_S = [_sample(row) for row in self.rows.next(self.rows_per_step)]
        return StepBatch(samples_S, np.ones((len(samples_S), 1)), temperature=1.0, on_policy=False)

    async def _evaluate(self, rows: Sequence[EncodedRow], step: int) -> EvalDone:
        """Return the mean of -log p over the rows' learned tokens, in nats."""
        samples = [_sample(row) for row in rows]
        logprobs = await self.workers.log_probabilities(samples, temperature=1.0)
        sums = [-float(values.sum()) for values in logprobs]
        lengths = [sample.trained_length for sample in samples]
        ends = ratio_interval(sums, lengths)
        return EvalDone(
            step=step,
            rows=len(samples),
            loss=sum(sums) / sum(lengths),
            metrics={"loss_low": ends[0], "loss_high": ends[1]} if ends else {},
        )


def _sample(row: EncodedRow) -> Sample:
    mask = None if row.trained is None else np.asarray(row.trained, np.bool_)
    return Sample(np.asarray(row.prompt_ids + row.answer_ids), len(row.prompt_ids), mask=mask)
