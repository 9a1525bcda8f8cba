"""Rollouts for distillation: the newest adapter samples, and a teacher scores every token in place of a reward.

Shape suffixes: P prompts of a step, G completions per prompt, S = P * G samples.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lorarl_trainer.algorithms.distillation import token_advantages
from lorarl_trainer.lora.files import TEACHER
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.rewards.scores import Outcome, ToScore
from lorarl_trainer.rollout.lockstep import completion_metrics
from lorarl_trainer.rollout.rounds import Rounds
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.samples.sample import Sample


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


class Taught(Rounds):
    """G completions of each of the next P prompts, with a teacher's log-probabilities of their tokens.

    The scorer is the teacher: a server, or `InTheWorkers`. Each evaluation has its own reward.
    """

    async def next(self, step: int, adapter_version: int) -> StepBatch:
        """Generate the samples of a step and let the teacher score them.

        The reward of a completion is the mean advantage of its tokens: minus the divergence from the teacher.
        """
        rows_P = self.rows.next(self.spec.rollout.prompts_per_step)
        made = await self._round(step, rows_P, 0, adapter_version, self._limits)
        samples_S, rollouts = made.samples_S, made.rollouts
        asked = time.perf_counter()
        teacher_S: Sequence[Floats | None] = [outcome.logprobs for outcome in rollouts.outcomes]
        if isinstance(self.scorer, InTheWorkers):
            teacher_S = await self.workers.log_probabilities(samples_S, self.spec.rollout.temperature, "teacher")
        seconds = {**rollouts.seconds, "reward": rollouts.seconds["reward"] + time.perf_counter() - asked}
        rewards_S, metrics = compared(samples_S, teacher_S)
        shown = self._generation.shown(replace(rollouts, rewards=rewards_S), self.group_size)
        return StepBatch(
            samples_S=samples_S,
            rewards_P_G=rewards_S.reshape(-1, self.group_size),
            temperature=self.spec.rollout.temperature,
            on_policy=True,
            metrics=metrics | completion_metrics(rollouts),
            seconds=seconds,
            shown=shown,
            teacher_S=teacher_S,
        )

    @property
    def _limits(self) -> dict[str, float]:
        distillation = self.spec.algorithm.distillation
        server = distillation and distillation.server
        return {self.scorer.field: server.max_failed_share} if server else {}


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
