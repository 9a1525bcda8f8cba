"""What is scored, what comes of it, and what every scorer can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from lorarl_trainer.data.rows import Prompt
from lorarl_trainer.errors import InputError

Cause = Literal["exception", "timeout", "non_finite", "wrong_type", "crash"]


@dataclass(frozen=True, slots=True)
class ToScore:
    """One completion to score.

    Attributes:
        prompt: The row's prompt as the data has it: a text or chat messages.
        completion: What the model wrote, without the stop token.
        answer: The row's reference answer, if it has one.
        row: The whole row.
    """

    prompt: Prompt
    completion: str
    answer: str | None
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One sample's score, or why it has none."""

    value: float
    cause: Cause | None = None
    message: str = ""

    @classmethod
    def failed(cls, cause: Cause, message: str) -> Outcome:
        """Make the outcome of a sample that could not be scored."""
        return cls(float("nan"), cause, message)


@dataclass(frozen=True, slots=True)
class Failure:
    """How many samples failed for one cause, and what the first of them said."""

    count: int
    first_message: str


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a step.

    Attributes:
        rewards: [S], in the order of the samples; NaN where a sample could not be scored.
        failures: For each cause that occurred, its count and first message.
    """

    rewards: NDArray[np.float64]
    failures: Mapping[Cause, Failure]


class Scorer(Protocol):
    """Scores completions. `ready` before the first step, `close` at the end."""

    @property
    def field(self) -> str:
        """The reward's path in the manifest, to name it in errors."""

    def warm_up(self) -> None:
        """Begin to start whatever scoring needs, without waiting for it."""

    async def ready(self) -> None:
        """Wait until scoring can begin.

        Raises:
            InputError: It never can: a missing module or function, or a wrong signature.
        """

    async def score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        """Score some samples of a step and return an outcome each, in their order; others may be given while these are being scored."""

    def close(self) -> None:
        """Stop what was started; nothing is left running."""


def collect(outcomes: Sequence[Outcome], field: str) -> Scores:
    """Put the outcomes of a step together.

    Args:
        outcomes: One a sample, in their order.
        field: The reward's path in the manifest, to name it in the error.

    Raises:
        InputError: There are samples and all of them failed: going on would train on nothing.
    """
    failures: dict[Cause, Failure] = {}
    for outcome in outcomes:
        if outcome.cause is not None:
            seen = failures.get(outcome.cause, Failure(0, outcome.message))
            failures[outcome.cause] = Failure(seen.count + 1, seen.first_message)
    if outcomes and sum(failure.count for failure in failures.values()) == len(outcomes):
        causes = "; ".join(f"{failure.count} x {cause}: {failure.first_message}" for cause, failure in failures.items())
        raise InputError(
            field,
            f"no score for any of {len(outcomes)} completions ({causes})",
            "a finite number for each completion",
            "Mend the reward, or its data.",
        )
    return Scores(np.array([outcome.value for outcome in outcomes], dtype=np.float64), failures)
