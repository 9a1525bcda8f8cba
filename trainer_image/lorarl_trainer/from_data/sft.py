"""Supervised fine-tuning as a source of samples: the data's own answers, without rollouts or a reward."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.stream import RowStream
from lorarl_trainer.progress import EvalDone
from lorarl_trainer.protocols.rollouts import Evaluates, StepBatch
from lorarl_trainer.protocols.workers import Workers
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.statistics import ratio_interval


@dataclass
class Answers:
    """The next rows' own answers.

    Attributes:
        held_out: rows by the evaluation's name.
        generated: the evaluations of completions, which need an engine; None for none.
    """

    rows: RowStream
    held_out: Mapping[str, Sequence[EncodedRow]]
    rows_per_step: int
    workers: Workers
    generated: Evaluates | None = None

    @property
    def position(self) -> int:
        """Rows taken so far."""
        return self.rows.position

    @property
    def unfinished(self) -> Sequence[int]:
        return ()

    async def next(self, step: int, adapter_version: int) -> StepBatch:
        """Return the next rows; each answer is as good as any other."""
        samples_S = [_sample(row) for row in self.rows.next(self.rows_per_step)]
        return StepBatch(samples_S, np.ones((len(samples_S), 1)), temperature=1.0, on_policy=False)

    def probe_prompts(self, count: int) -> list[list[int]]:
        """Return the first prompts of the data; none without an engine to check."""
        return [row.prompt_ids for row in self.rows.first(count)] if self.generated else []

    async def evaluate(self, name: str, step: int, adapter_version: int) -> EvalDone:
        """Return the mean of -log p over the held-out rows' learned tokens, in nats, unless it is of completions."""
        if self.generated and name in self.generated.evaluations:
            return await self.generated.evaluate(name, step, adapter_version)
        start = time.perf_counter()
        samples = [_sample(row) for row in self.held_out[name]]
        logprobs = await self.workers.log_probabilities(samples, temperature=1.0)
        sums = [-float(values.sum()) for values in logprobs]
        lengths = [sample.trained_length for sample in samples]
        ends = ratio_interval(sums, lengths)
        return EvalDone(
            step=step,
            name=name,
            rows=len(samples),
            loss=sum(sums) / sum(lengths),
            metrics={"loss_low": ends[0], "loss_high": ends[1]} if ends else {},
            seconds=time.perf_counter() - start,
        )


def _sample(row: EncodedRow) -> Sample:
    mask = None if row.trained is None else np.asarray(row.trained, np.bool_)
    return Sample(np.asarray(row.prompt_ids + row.answer_ids), len(row.prompt_ids), mask=mask)
