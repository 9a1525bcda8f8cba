"""Supervised fine-tuning: the loss is the cross-entropy of the answers. No engine, no reward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lorarl_trainer.algorithms import LossChoice
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.guards import require_finite_gradient
from lorarl_trainer.progress import StepDone
from lorarl_trainer.samples.types import Sample, Samples, UpdateRequest
from lorarl_trainer.schedule import learning_rate, seed_of
from lorarl_trainer.session import Session, StepClock
from lorarl_trainer.workers.group import WorkerGroup


async def imitate(session: Session, step: int, clock: StepClock) -> StepDone:
    """Make one step: an update on the next rows."""
    spec = session.spec
    samples = Samples(_sample(row) for row in session.next_rows(spec.rollout.prompts_per_step))
    result = await session.workers.update(
        UpdateRequest(
            samples=samples,
            loss=LossChoice("cross_entropy"),
            total_tokens=sum(sample.response_length for sample in samples),
            temperature=1.0,
            learning_rate=learning_rate(spec.trainer, step),
            seed=seed_of(spec.trainer.seed, "dropout", step),
            on_policy=False,
            tolerance=float("inf"),
        )
    )
    require_finite_gradient(result, step)
    for phase, seconds in result.seconds.items():
        clock.add(phase, seconds)
    session.adapter_version, _ = await session.workers.sync()
    return StepDone(
        step=step,
        total_steps=session.total_steps,
        adapter_version=session.adapter_version,
        loss=result.loss,
        grad_norm=result.grad_norm,
        learning_rate=learning_rate(spec.trainer, step),
        tokens=sum(len(sample.tokens) for sample in samples),
        tokens_per_second=0.0,
        seconds={},
    )


async def imitation_loss(workers: WorkerGroup, rows: Sequence[EncodedRow]) -> float:
    """Return the mean of -log p over the answers' tokens, in nats."""
    samples = [_sample(row) for row in rows]
    return sum(await workers.losses(samples)) / sum(sample.response_length for sample in samples)


def _sample(row: EncodedRow) -> Sample:
    return Sample(np.asarray(row.prompt_ids + row.answer_ids), len(row.prompt_ids))
