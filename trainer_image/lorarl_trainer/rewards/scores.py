"""What is scored, the results, and the interface of all scorers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from lorarl_trainer.data.cells import Prompt
from lorarl_trainer.errors import InputError, RewardServerError
from lorarl_trainer.samples.arrays import Floats, Ints

Cause = Literal[
    "exception", "timeout", "non_finite", "wrong_type", "too_long", "crash", "server", "refused", "branch", "no_turn"
]


@dataclass(frozen=True, slots=True)
class ToScore:
    """One completion to score.

    Attributes:
        prompt: the row's prompt as in the data: a text or chat messages.
        completion: the model's text, without the stop token.
        answer: the row's reference answer, if it has one.
        truncated: whether the completion was cut off at maxResponseTokens.
        tokens: how many tokens the model generated, with the one that ends the completion.
        prompt_ids, completion_ids: the tokens themselves; empty where a text is scored that no model generated.
    """

    prompt: Prompt
    completion: str
    answer: str | None
    row: Mapping[str, Any]
    truncated: bool = False
    tokens: int = 0
    prompt_ids: Sequence[int] = ()
    completion_ids: Sequence[int] | Ints = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """One sample's score, or the reason why it has none.

    Attributes:
        value: the score; NaN if there is none.
        cause: why there is none.
        message: the cause in detail.
        components: further numbers of a reward that returned a mapping, by name. They are recorded, not trained on.
        reward: path of the reward that failed, of several (`spec.rewards[0]`).
        logprobs: a teacher's log-probabilities of the completion's tokens; None of all else.
        unrecorded: of several, those that failed and only cost their components, by name, with the reason.
    """

    value: float
    cause: Cause | None = None
    message: str = ""
    components: Mapping[str, float] = field(default_factory=dict)
    reward: str | None = None
    logprobs: Floats | None = None
    unrecorded: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def failed(cls, cause: Cause, message: str) -> Outcome:
        """Make the outcome of a sample that could not be scored."""
        return cls(float("nan"), cause, message)

    @property
    def failure(self) -> str | None:
        """Why there is no score, in words; None if there is one."""
        return f"{self.cause}: {self.message}" if self.cause else None


@dataclass(frozen=True, slots=True)
class Failure:
    """How many samples failed for one cause, and the first one's message."""

    count: int
    first_message: str


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a step.

    Attributes:
        rewards: [S], in the order of the samples; NaN for a sample that could not be scored.
    """

    rewards: NDArray[np.float64]
    failures: Mapping[Cause, Failure]


class Judge(Protocol):
    """Gives rewards. Call `ready` before the first step and `close` at the end."""

    @property
    def field(self) -> str:
        """Its path in the manifest, for errors."""

    def warm_up(self) -> None:
        """Start what it needs, without waiting for it."""

    async def ready(self) -> None:
        """Wait until it can begin.

        Raises:
            InputError: it never can, because of a missing module or function or a wrong signature.
        """

    def close(self) -> None:
        """Stop everything that was started."""


class Scorer(Judge, Protocol):
    """Scores completions."""

    async def score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        """Score some samples of a step and return their outcomes in order. Others may be given meanwhile."""


def collect(outcomes: Sequence[Outcome], path: str) -> Scores:
    """Combine the outcomes of a step.

    `outcomes`: one per sample, in the order of the samples.

    Raises:
        InputError: there are samples and all of them failed, so there is nothing to train on.
        RewardServerError: the same, and a server could not be asked.
    """
    failures: dict[Cause, Failure] = {}
    for outcome in outcomes:
        if outcome.cause is not None:
            seen = failures.get(outcome.cause, Failure(0, outcome.message))
            failures[outcome.cause] = Failure(seen.count + 1, seen.first_message)
    if outcomes and sum(failure.count for failure in failures.values()) == len(outcomes):
        causes = "; ".join(f"{failure.count} x {cause}: {failure.first_message}" for cause, failure in failures.items())
        got = f"no score for any of {len(outcomes)} completions ({causes})"
        if "server" in failures:
            raise RewardServerError(f"{path}: {got}. {fix_of(path, failures)} The next start resumes.")
        raise InputError(path, got, "a finite number for each completion", fix_of(path, failures))
    return Scores(np.array([outcome.value for outcome in outcomes], dtype=np.float64), failures)


def fix_of(path: str, causes: Collection[str | None]) -> str:
    """Return what to do about a reward that scores nothing, as a sentence."""
    if "server" in causes:
        return "Check that the server runs, and its url in the manifest."
    if path.endswith(".server"):
        return f"Correct url, api, model or instruction of {path}."
    return f"Fix the {'environment' if path.endswith('.environment') else 'reward'} or its data."


def first_failures(outcomes: Sequence[Outcome]) -> dict[str, tuple[Cause, Failure]]:
    """Return cause, count and first message of each kind of failure. One cause in two rewards is two kinds."""
    found: dict[str, tuple[Cause, Failure]] = {}
    for outcome in outcomes:
        if outcome.cause is not None:
            kind = f"{outcome.reward or ''} {outcome.cause}"
            _, seen = found.get(kind, (outcome.cause, Failure(0, outcome.message)))
            found[kind] = outcome.cause, Failure(seen.count + 1, seen.first_message)
    return found


def require_scored(outcomes: Sequence[Outcome], limits: Mapping[str, float], when: str) -> None:
    """Stop a run in which too many completions cannot be scored.

    `limits`: `maxFailedShare` of each reward, by the reward's path in the manifest. `when`: the step or evaluation in
    words, for the error.

    Raises:
        InputError: a reward failed for more than its share; it shows the most common failure.
        RewardServerError: the same, and a server could not be asked.
    """
    for path, limit in limits.items():
        failures = [outcome.failure for outcome in outcomes if outcome.cause and outcome.reward in (None, path)]
        if not failures or len(failures) / len(outcomes) <= limit:
            continue
        [(failure, count)] = Counter(failures).most_common(1)
        got = (
            f"{len(failures)} of {len(outcomes)} completions without a score {when} (most often, {count} x, {failure})"
        )
        if any(outcome.cause == "server" for outcome in outcomes if outcome.reward in (None, path)):
            raise RewardServerError(
                f"{path}.maxFailedShare: got {got}, expected at most {limit:.4g} of them. Check that the server runs. "
                "The next start resumes."
            )
        raise InputError(
            f"{path}.maxFailedShare",
            got,
            f"at most {limit:.4g} of them",
            f"{fix_of(path, ()).removesuffix('.')}, or raise {path}.maxFailedShare.",
        )
