"""A step's samples, group by group: each group is handed over when its last completion is scored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.protocols.rollouts import StepBatch, TakeGroup
from lorarl_trainer.samples.types import Completion, Sample


class Groups:
    """Collects the samples of a step.

    Attributes:
        samples: those that were added, by their index in the step.
    """

    def __init__(self, rows_S: Sequence[EncodedRow], group_size: int, temperature: float, take: TakeGroup) -> None:
        """`rows_S` has each prompt's row as many times as its group has completions."""
        self.samples: dict[int, Sample] = {}
        self._rows, self._size, self._temperature, self._take = rows_S, group_size, temperature, take
        self._rewards = np.full(len(rows_S), np.nan)

    def add(self, index: int, completion: Completion, reward: float) -> None:
        """Add a completion and its reward, NaN if it could not be scored."""
        self.samples[index] = Sample.of(self._rows[index].prompt_ids, completion)
        self._rewards[index] = reward
        first = index - index % self._size
        members = range(first, first + self._size)
        if all(member in self.samples for member in members):
            self._take(first, self._batch(members))

    def _batch(self, members: range) -> StepBatch:
        return StepBatch(
            samples_S=[self.samples[member] for member in members],
            rewards_P_G=self._rewards[np.newaxis, members.start : members.stop],
            temperature=self._temperature,
            on_policy=True,
        )
