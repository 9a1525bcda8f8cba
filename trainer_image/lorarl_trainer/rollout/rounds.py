"""What rollouts share whose samples the newest adapter generates: rounds of completions, and evaluations.

Shape suffixes: P prompts of a round, G completions per prompt, S = P * G samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.stream import RowStream
from lorarl_trainer.progress import EvalDone, Progress
from lorarl_trainer.protocols.workers import Workers
from lorarl_trainer.rewards.scores import Scorer
from lorarl_trainer.rollout.collect import ScoredRollouts
from lorarl_trainer.rollout.episodes import Episodes
from lorarl_trainer.rollout.evaluation import Evaluation
from lorarl_trainer.rollout.generation import Generation
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.schedule import seed_of


@dataclass(frozen=True)
class Round:
    """What one round made: samples, and the rollouts that have their rewards."""

    samples_S: Sequence[Sample]
    rollouts: ScoredRollouts


@dataclass
class Rounds:
    """Makes G completions of each of the next rows, and scores them.

    Attributes:
        evaluations: by name.
        group_size: G.
        scorer: scores completions, or plays episodes.
        decode, decode_prompts: see `Generation`.
        newer: a step's completions may be by newer versions than the one with which they were asked for.
    """

    spec: LoRARLJobSpec
    rows: RowStream
    evaluations: Mapping[str, Evaluation]
    group_size: int
    workers: Workers
    scorer: Scorer | Episodes
    decode: Callable[[Sequence[Any]], list[str]]
    progress: Progress
    decode_prompts: Callable[[Sequence[Any]], list[str]]
    newer: bool = False
    _generation: Generation = field(init=False)

    def __post_init__(self) -> None:
        self._generation = Generation(
            self.spec, self.workers, self.progress, self.decode, self.decode_prompts, self.evaluations
        )

    @property
    def position(self) -> int:
        """Rows taken so far."""
        return self.rows.position

    @property
    def unfinished(self) -> Sequence[int]:
        """See `Rollouts.unfinished`: none, since a step ends when all of its completions have."""
        return ()

    def probe_prompts(self, count: int) -> list[list[int]]:
        """Return the first prompts of the data."""
        return [list(row.prompt_ids) for row in self.rows.first(count)]

    async def evaluate(self, name: str, step: int, adapter_version: int) -> EvalDone:
        return await self._generation.evaluate(name, step, adapter_version)

    async def _round(
        self,
        step: int,
        rows_P: Sequence[EncodedRow],
        before: int,
        adapter_version: int,
        limits: Mapping[str, float],
    ) -> Round:
        """Generate and score G completions of each row, after so many completions of the same step.

        `limits`: see `Generation.roll_out`.
        """
        rows_S = [row for row in rows_P for _ in range(self.group_size)]
        # One seed per sample: the same completions on any number of engines.
        seeds_S = [seed_of(self.spec.trainer.seed, "sample", step, before + index) for index in range(len(rows_S))]
        when = f"in step {step}"
        requests_S = [
            GenerationRequest(row.prompt_ids, when, seed, adapter=adapter_version, newer=self.newer)
            for row, seed in zip(rows_S, seeds_S, strict=True)
        ]
        # One per group: its episodes begin alike, so that their rewards can be compared.
        starts_S = (
            seed_of(self.spec.trainer.seed, "episode", step, (before + index) // self.group_size)
            for index in range(len(rows_S))
        )
        rollouts = await self._generation.roll_out(
            rows_S, requests_S, adapter_version, self.scorer, limits, when, starts_S
        )
        return Round(samples_of(rollouts), rollouts)


def samples_of(rollouts: ScoredRollouts) -> list[Sample]:
    """Return what rollouts made as samples: one of each completion, or of each sequence of its episode."""
    samples: list[Sample] = []
    further = rollouts.further or [()] * len(rollouts.rows)
    for row, made, others in zip(rollouts.rows, rollouts.completions, further, strict=True):
        samples.append(Sample.of(row.prompt_ids, made))
        samples += [Sample.of(one.row.prompt_ids, one.completion) for one in others]
    return samples
