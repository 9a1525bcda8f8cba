"""An episode while it is played: sequences of tokens, each of which grows at its end alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.rewards.environment.worker import FAILED, MALFORMED
from lorarl_trainer.rewards.scores import Outcome
from lorarl_trainer.rollout.collect import Course, End, Further, ToolUse
from lorarl_trainer.samples.sample import Completion


@dataclass
class PlayedSequence:
    """A sequence of an episode so far.

    Attributes:
        row: with what opened it as its prompt.
        number: of the sequence in its episode, from 0 on.
        turns: the model's, each without what came before. Those that it shares with an earlier sequence are not here.
        response: tokens after the prompt.
        mask: which of them are trained: the model made them, and in no earlier sequence.
        cut: whether a limit of tokens ended it.
        busy: whether a turn of it is being made.
    """

    row: EncodedRow
    number: int = 0
    turns: list[Completion] = field(default_factory=list)
    response: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    cut: bool = False
    busy: bool = False

    def append(self, tokens: Sequence[int], *, made: bool) -> None:
        """Add tokens at the end, which the model made or not."""
        self.response += tokens
        self.mask += [made] * len(tokens)

    def add(self, made: Completion) -> Completion:
        """Add a turn of the model, and return it."""
        self.turns.append(made)
        self.append(made.tokens.tolist(), made=True)
        return made

    def take_back(self) -> None:
        """Remove the last text of the environment, if no turn follows it."""
        while self.mask and not self.mask[-1]:
            self.mask.pop()
            self.response.pop()

    def completion(self, version: int) -> Completion:
        """Return all after the prompt, by the oldest version that made a turn; by this one if none was made."""
        kept = [turn.kept for turn in self.turns if turn.kept is not None]
        return Completion(
            tokens=np.array(self.response, np.int64),
            logprobs=np.concatenate([np.empty(0, np.float32), *(turn.logprobs for turn in self.turns)]),
            finished=not self.cut,
            adapter_version=min((turn.adapter_version for turn in self.turns), default=version),
            kept=np.concatenate(kept) if kept and len(kept) == len(self.turns) else None,
            routing=self.turns[-1].routing if self.turns else None,
            mask=np.array(self.mask, np.bool_),
        )


@dataclass
class Played:
    """An episode so far.

    Attributes:
        sequences: the first one, and those that an agent began beside it.
        results: why each tool call was answered with an error, or empty; None without tools.
        rewards: those that turns got.
        components: the last value of each.
        seconds: that its environment took.
    """

    sequences: list[PlayedSequence]
    results: list[str] | None = None
    rewards: list[float] = field(default_factory=list)
    components: dict[str, float] = field(default_factory=dict)
    ended: End = "done"
    outcome: Outcome | None = None
    seconds: float = 0.0

    @property
    def first(self) -> PlayedSequence:
        """The first sequence: the only one, unless an agent plays."""
        return self.sequences[0]

    def finish(self) -> None:
        """Remove what no turn of the model follows."""
        self.sequences[1:] = [one for one in self.sequences[1:] if one.turns]
        for one in self.sequences:
            one.take_back()

    @property
    def course(self) -> Course:
        """How it went."""
        faults = self.results
        used = None if faults is None else ToolUse(len(faults), faults.count(MALFORMED), faults.count(FAILED))
        turns = [turn for one in self.sequences for turn in one.turns]
        versions = len({turn.adapter_version for turn in turns})
        return Course(len(turns), self.seconds, self.ended, used, versions, len(self.sequences))

    def further(self, version: int) -> list[Further]:
        """Return the sequences beside the first one; see `PlayedSequence.completion`."""
        return [Further(one.row, one.completion(version)) for one in self.sequences[1:]]
