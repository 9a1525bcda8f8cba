"""Where the samples of a step come from: generated and scored (`rollout.lockstep`), or the data (`from_data`).

Shape suffixes: P prompts of a step, G completions per prompt, S = P * G samples, T tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from lorarl_trainer.algorithms.base import Ints, Rewards
from lorarl_trainer.progress import EvalDone, ScoredSample
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.samples.types import Sample


@dataclass(frozen=True)
class StepBatch:
    """The samples of one step, before the algorithm gives them advantages.

    Attributes:
        samples_S: group by group.
        rewards_P_G: NaN where a completion could not be scored.
        temperature: the temperature at which log-probabilities are taken.
        on_policy: the newest adapter generated all samples, so engine and trainer must agree about them.
        metrics: columns of metrics.jsonl, by name.
        seconds: by phase.
        shown: the first of the samples, for people; empty where the data has them.
        teacher_S: a teacher's log-probabilities of the tokens of each sample, None of one that it did not score; empty
            without a teacher.
    """

    samples_S: Sequence[Sample]
    rewards_P_G: Rewards
    temperature: float
    on_policy: bool
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    shown: Sequence[ScoredSample] = ()
    teacher_S: Sequence[Floats | None] = ()

    @property
    def response_lengths(self) -> Ints:
        """Response tokens of each sample, [P, G]."""
        lengths_S = np.array([sample.response_length for sample in self.samples_S], np.int64)
        return lengths_S.reshape(self.rewards_P_G.shape)


type TakeGroup = Callable[[int, StepBatch], None]
"""Takes a group of a step that has ended and is scored: the index of its first sample in the step, and the group as a
batch of one prompt."""


class Evaluates(Protocol):
    """Makes evaluations of completions."""

    @property
    def evaluations(self) -> Mapping[str, object]:
        """By name."""

    async def evaluate(self, name: str, step: int, adapter_version: int) -> EvalDone:
        """Make one of them with the newest adapter."""


class Rollouts(Protocol):
    """A source of samples."""

    @property
    def position(self) -> int:
        """Rows taken so far. Together with the seed it decides which rows come next."""

    async def next(self, step: int, adapter_version: int, take: TakeGroup) -> StepBatch:
        """Return the samples of a step. The engine holds adapter `adapter_version`, the newest one.

        What is generated goes to `take` as well, each group as soon as its last completion is scored.
        """

    def probe_prompts(self, count: int) -> Sequence[Sequence[int]]:
        """Return a few prompts, at most `count`, to check the engine with; none if there is no engine."""

    async def evaluate(self, name: str, step: int, adapter_version: int) -> EvalDone:
        """Evaluate the newest adapter on the held-out rows of this name; the empty name is that of `data.eval`."""
