"""Rollouts for distillation: the newest adapter samples, and a teacher scores every token in place of a reward.

Shape suffixes: P prompts of a step, G completions per prompt, S = P * G samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.algorithms.distillation import token_advantages
from lorarl_trainer.data.stream import RowStream
from lorarl_trainer.lora.files import TEACHER
from lorarl_trainer.progress import EvalDone, Progress
from lorarl_trainer.protocols.rollouts import StepBatch, TakeGroup
from lorarl_trainer.protocols.workers import Workers
from lorarl_trainer.rewards.scores import Outcome, Scorer, ToScore
from lorarl_trainer.rollout.evaluation import Evaluation
from lorarl_trainer.rollout.generation import Generation
from lorarl_trainer.rollout.groups import Groups
from lorarl_trainer.rollout.lockstep import completion_metrics
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.samples.types import Sample
from lorarl_trainer.schedule import seed_of

TEMPERATURE = 1.0
"""The contract allows no other: a teacher's probabilities are at this one."""


class InTheWorkers:
    """Leaves scoring to the workers: their base model with the teacher's adapter."""

    field = TEACHER

    def warm_up(self) -> None:
        """Do nothing."""

    async def ready(self) -> None:
        """Do nothing: the adapter was checked, and the workers have it."""

    async def score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        """Return outcomes without log-probabilities."""
        return [Outcome(0.0) for _ in samples]

    def close(self) -> None:
        """Do nothing."""


@dataclass
class Taught:
    """G completions of each of the next P prompts, with a teacher's log-probabilities of their tokens.

    Attributes:
        rows: the training rows.
        evaluations: by name; each has a reward of its own.
        group_size: G.
        teacher: a server that scores completions, or `InTheWorkers`.
        decode, decode_prompts: see `Generation`.
    """

    spec: LoRARLJobSpec
    rows: RowStream
    evaluations: Mapping[str, Evaluation]
    group_size: int
    workers: Workers
    teacher: Scorer
    decode: Callable[[Sequence[Any]], list[str]]
    progress: Progress
    decode_prompts: Callable[[Sequence[Any]], list[str]]
    _generation: Generation = field(init=False)

    def __post_init__(self) -> None:
        """Make what generates."""
        self._generation = Generation(
            self.spec, self.workers, self.progress, self.decode, self.decode_prompts, self.evaluations
        )

    @property
    def position(self) -> int:
        """Rows taken so far."""
        return self.rows.position

    async def next(self, step: int, adapter_version: int, take: TakeGroup) -> StepBatch:
        """Generate the samples of a step and let the teacher score them. Nothing is handed over ahead.

        The reward of a completion is the mean advantage of its tokens: minus the divergence from the teacher.
        """
        rows_P = self.rows.next(self.spec.rollout.prompts_per_step)
        rows_S = [row for row in rows_P for _ in range(self.group_size)]
        seeds_S = [seed_of(self.spec.trainer.seed, "sample", step, index) for index in range(len(rows_S))]
        groups = Groups(rows_S, self.group_size, TEMPERATURE, lambda first, group: None)
        rollouts = await self._generation.roll_out(
            rows_S, seeds_S, None, adapter_version, self.teacher, self._limits, f"in step {step}", groups.add
        )
        samples_S = [groups.samples[index] for index in range(len(rows_S))]
        asked = time.perf_counter()
        teacher_S: Sequence[Floats | None] = [outcome.logprobs for outcome in rollouts.outcomes]
        if isinstance(self.teacher, InTheWorkers):
            teacher_S = await self.workers.log_probabilities(samples_S, TEMPERATURE, "teacher")
        seconds = {**rollouts.seconds, "reward": rollouts.seconds["reward"] + time.perf_counter() - asked}
        rewards_S, metrics = compared(samples_S, teacher_S)
        shown = self._generation.shown(replace(rollouts, rewards=rewards_S), rows_S, self.group_size)
        return StepBatch(
            samples_S=samples_S,
            rewards_P_G=rewards_S.reshape(-1, self.group_size),
            temperature=TEMPERATURE,
            on_policy=True,
            metrics=metrics | completion_metrics(rollouts),
            seconds=seconds,
            shown=shown,
            teacher_S=teacher_S,
        )

    def probe_prompts(self, count: int) -> list[list[int]]:
        """Return the first prompts of the data."""
        return [list(row.prompt_ids) for row in self.rows.first(count)]

    async def evaluate(self, name: str, step: int, adapter_version: int) -> EvalDone:
        """See `Generation.evaluate`."""
        return await self._generation.evaluate(name, step, adapter_version)

    @property
    def _limits(self) -> dict[str, float]:
        distillation = self.spec.algorithm.distillation
        server = distillation and distillation.server
        return {self.teacher.field: server.max_failed_share} if server else {}


def compared(
    samples_S: Sequence[Sample], teacher_S: Sequence[Floats | None]
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], dict[str, float]]:
    """Return the mean advantage of each sample's tokens, [S], NaN where the teacher scored none, and metrics.

    teacher/kl: KL(student || teacher) per token in nats, estimated from the sampled tokens, so it may be below 0.
    teacher/scored_share: share of the tokens that the teacher scored, 0 to 1.
    """
    rewards, divergence, scored = np.full(len(samples_S), np.nan), 0.0, 0
    for index, (sample, teacher) in enumerate(zip(samples_S, teacher_S, strict=True)):
        if teacher is None:
            continue
        assert sample.rollout_logprobs is not None, "samples that a teacher scores are generated"
        advantages = token_advantages(teacher, sample.rollout_logprobs)
        rewards[index] = advantages.mean()
        divergence, scored = divergence - float(advantages.sum(dtype=np.float64)), scored + len(advantages)
    tokens = sum(sample.trained_length for sample in samples_S)
    return rewards, {"teacher/kl": divergence / max(1, scored), "teacher/scored_share": scored / tokens}
