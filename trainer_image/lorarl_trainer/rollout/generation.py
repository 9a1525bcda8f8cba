"""Completions of rows, generated and scored: for a step of training, or for an evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.progress import EvalDone, Progress, Sampled, ScoredSample
from lorarl_trainer.protocols.workers import Workers
from lorarl_trainer.rewards.components import component_metrics, odd_components
from lorarl_trainer.rewards.scores import Outcome, Scorer, first_failures, require_scored
from lorarl_trainer.rollout.collect import ScoredRollouts, generate_and_score, shown_samples
from lorarl_trainer.rollout.episodes import Episodes, episode_metrics
from lorarl_trainer.rollout.evaluation import Evaluation
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.statistics import eval_metrics
from lorarl_trainer.schedule import seed_of


@dataclass(frozen=True)
class Generation:
    """What generates and scores.

    Attributes:
        decode: turns completions' token ids into texts, without special tokens.
        decode_prompts: turns prompts' token ids into texts, with special tokens: what the model sees.
        evaluations: by name; those that are made of completions.
    """

    spec: LoRARLJobSpec
    workers: Workers
    progress: Progress
    decode: Callable[[Sequence[Any]], list[str]]
    decode_prompts: Callable[[Sequence[Any]], list[str]]
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)

    @property
    def limits(self) -> dict[str, float]:
        """`maxFailedShare` of each of the job's rewards, or of its environment, by its path in the manifest."""
        return self.spec.failed_shares

    async def evaluate(self, name: str, step: int, adapter_version: int) -> EvalDone:
        """Return the mean reward of completions of the held-out prompts, and each pass@k, with 95% intervals."""
        start, evaluation = time.perf_counter(), self.evaluations[name]
        rows = [row for row in evaluation.rows for _ in range(evaluation.samples)]
        # The same random numbers each time, so that a difference between two steps is the adapter's.
        seeds = [seed_of(self.spec.trainer.seed, f"evaluation {name}", index) for index in range(len(rows))]
        scorer, limits = evaluation.scorer, evaluation.limits or self.limits
        when = f"in the evaluation {name} after step {step}" if name else f"in the evaluation after step {step}"
        requests = [
            GenerationRequest(
                row.prompt_ids,
                when,
                seed if evaluation.sampling else None,
                sampling=evaluation.sampling,
                adapter=adapter_version,
            )
            for row, seed in zip(rows, seeds, strict=True)
        ]
        starts = evaluation.starts(self.spec.trainer.seed)
        rollouts = await self.roll_out(rows, requests, adapter_version, scorer, limits, when, starts)
        shown = self.shown(rollouts, evaluation.samples)
        self.progress.emit(Sampled(step=step, samples=shown, evaluation=True, name=name))
        score, metrics = eval_metrics(
            rollouts.rewards.reshape(-1, evaluation.samples), evaluation.pass_at, evaluation.pass_reward
        )
        return EvalDone(
            step=step,
            name=name,
            rows=len(evaluation.rows),
            samples=evaluation.samples,
            unscored=rollouts.unscored,
            score=score,
            metrics=metrics | component_metrics(rollouts.outcomes) | episode_metrics(rollouts.courses),
            seconds=time.perf_counter() - start,
        )

    async def roll_out(
        self,
        rows: Sequence[EncodedRow],
        requests: Sequence[GenerationRequest],
        adapter_version: int,
        scorer: Scorer | Episodes,
        limits: Mapping[str, float],
        when: str,
        starts: Iterable[int],
    ) -> ScoredRollouts:
        """Generate and score the completion that is wanted of each row, or play its episode.

        `limits` has `maxFailedShare` by the path of each reward. `when` says in which step or evaluation, for errors.
        `starts`: seeds of what episodes begin with, see `Episodes.play`; looked at only by these.

        Raises:
            LorarlError: too few completions could be scored, or a worker failed.
        """
        lane = self.workers.lane()
        if isinstance(scorer, Episodes):
            rollouts = await scorer.play(lane, rows, requests, list(starts), adapter_version)
        else:
            rollouts = await generate_and_score(lane, scorer, self.decode, rows, requests, adapter_version)
        self.require_scored(rollouts.outcomes, limits, when)
        return rollouts

    def require_scored(self, outcomes: Sequence[Outcome], limits: Mapping[str, float], when: str) -> None:
        """Warn of completions that could not be scored, and of odd components. See `roll_out`.

        Raises:
            LorarlError: too few could be scored.
        """
        for kind, (cause, failure) in first_failures(outcomes).items():
            self.progress.warn_once(
                kind,
                f"{failure.count} completions could not be scored and are left out ({cause}): {failure.first_message}",
            )
        require_scored(outcomes, limits, when)
        for kind, warning in odd_components(outcomes):
            self.progress.warn_once(f"components: {kind}", warning)

    def shown(self, rollouts: ScoredRollouts, group_size: int) -> tuple[ScoredSample, ...]:
        """Return the samples that people see."""
        limit = self.spec.tracking.samples_per_step
        return shown_samples(rollouts, self.decode_prompts, group_size=group_size, limit=limit)
