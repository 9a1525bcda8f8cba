"""The rewards that look at a text only: comparisons with the answer, and format. They run in the driver's process."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

import regex  # type: ignore[import-untyped]  # ships no types

from lorarl_api.v1alpha1 import RewardSpec
from lorarl_trainer.data.cells import brief
from lorarl_trainer.data.rows import Row
from lorarl_trainer.errors import InputError
from lorarl_trainer.rewards.numbers import answer_in, ends_with, has_digits, is_words, last_number, one_number
from lorarl_trainer.rewards.scores import Outcome, ToScore

Compare = Callable[[str, str], bool]
"""Whether a completion gives the answer. Its arguments are the completion and the answer."""


Measure = Callable[[ToScore], float]
"""The score of a completion. Raises TimeoutError, with a message, if it takes too long."""


class MissingAnswerError(Exception):
    """The row has no answer to compare with."""


class BuiltinScorer:
    """Scores each completion by itself."""

    def __init__(self, measure: Measure, field: str) -> None:
        """Score by `measure`. `field` is the reward's path in the manifest, for errors."""
        self._measure, self.field = measure, field

    def warm_up(self) -> None:
        """Do nothing: no process has to start."""

    async def ready(self) -> None:
        """Return at once."""

    async def score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        """Score the samples in a thread: a pattern may take up to the time limit, and other threads run meanwhile."""
        return await asyncio.to_thread(lambda: [self._outcome(sample) for sample in samples])

    def close(self) -> None:
        """Do nothing: no process was started."""

    def _outcome(self, sample: ToScore) -> Outcome:
        try:
            return Outcome(self._measure(sample))
        except MissingAnswerError:
            return Outcome.failed("wrong_type", "the row has no answer")
        except TimeoutError as error:
            return Outcome.failed("timeout", str(error))


def unanswerable(rewards: Mapping[str, RewardSpec], rows: Sequence[Row]) -> Iterator[str]:
    """Yield a warning for each reward that compares numbers or formulas, and each kind of answers that are none.

    `rewards` are by their paths in the manifest.
    """
    answered = [(row.number, row.answer) for row in rows if row.answer is not None and row.answer.strip()]
    for path, reward in rewards.items():
        for what, then, is_odd in _ODD_ANSWERS.get(reward.type or "", ()):
            if odd := [(number, answer) for number, answer in answered if is_odd(answer)]:
                yield (
                    f"{path}.type: {reward.type}, but {len(odd):,} of {len(rows):,} answers {what}, first that of row "
                    f"{odd[0][0]} ({brief(odd[0][1])}){then}"
                )


_ODD_ANSWERS: dict[str, tuple[tuple[str, str, Callable[[str], bool]], ...]] = {
    "numeric": (
        (
            "have no number",
            ", so every completion gets 0 there. Fix them, or remove those rows.",
            lambda answer: not has_digits(answer),
        ),
        (
            "are more than one number",
            ". A completion is right there if it ends with all of that text. Keep one number in the column, or use "
            "math_verify for formulas, and exact or regex for others.",
            lambda answer: has_digits(answer) and one_number(answer) is None,
        ),
    ),
    "math_verify": (
        (
            "are words",
            ". They are compared as texts. Use exact or regex for words.",
            is_words,
        ),
    ),
}


def make_measure(spec: RewardSpec, path: str = "spec.reward") -> Measure:
    """Make the measure of a reward's type exact, numeric, regex or format.

    `path` is the reward's in the manifest, for errors.

    Raises:
        InputError: the pattern does not compile, or is missing.
    """
    if spec.type == "format":
        find = _compiled(spec.pattern, spec.timeout_seconds, f"{path}.pattern", whole=True)
        return lambda sample: float(find(sample.completion.strip()) is not None)
    compare = _comparison(spec, path)

    def measure(sample: ToScore) -> float:
        if sample.answer is None:
            raise MissingAnswerError
        return float(compare(sample.completion, sample.answer))

    return measure


def _comparison(spec: RewardSpec, path: str) -> Compare:
    """Make the comparison of a reward's type exact, numeric or regex.

    `path` is the reward's in the manifest, for errors.

    Raises:
        InputError: the pattern does not compile, or is missing.
    """
    if spec.type == "exact":
        return is_exact
    if spec.type == "numeric":
        tolerance = Fraction(str(spec.effective_tolerance))  # the decimal 0.3, not the double nearest to it
        return lambda completion, answer: is_numerically_equal(completion, answer, tolerance)
    find = _compiled(spec.pattern, spec.timeout_seconds, f"{path}.pattern")

    def compare(completion: str, answer: str) -> bool:
        text = find(completion)
        return text is not None and is_exact(text, answer)

    return compare


def is_exact(completion: str, answer: str) -> bool:
    """Compare texts, ignoring leading and trailing white space."""
    return completion.strip() == answer.strip()


def _compiled(
    pattern: str | None, timeout_seconds: float, field: str, *, whole: bool = False
) -> Callable[[str], str | None]:
    """Return what finds the pattern in a text, and returns its first group or else the whole match."""
    expected = "a Python regular expression"
    if pattern is None:
        raise InputError(field, "nothing", expected, f"Set {field}, for example to 'answer: (.*)'.")
    try:
        # Python's own re blocks every thread while it searches, and cannot be stopped when a pattern backtracks
        # forever.
        plain = _BRACE.sub(lambda found: r"\{" if found["brace"] else found[0], pattern)
        compiled = regex.compile(plain, regex.DOTALL if whole else 0)
    except regex.error as error:
        got = f"{pattern!r}, which does not compile ({error})"
        raise InputError(field, got, expected, f"Fix {field}.") from error
    match = compiled.fullmatch if whole else compiled.search

    def find(text: str) -> str | None:
        try:
            found = match(text, timeout=timeout_seconds, concurrent=True)
        except TimeoutError:
            message = f"the pattern took more than {timeout_seconds:g} s on a completion of {len(text)} characters"
            raise TimeoutError(message) from None
        # A group that takes no part in the match is no text; a whole match is one, whatever its groups are.
        return found and (found[0] if whole else found[1 if compiled.groups else 0])

    return find


# In Python's re a brace that is not part of a quantifier means itself, as LaTeX needs. In regex, N_{d} would match any
# text that differs from N by a deletion.
_BRACE = re.compile(r"\\N\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<brace>\{(?!\d+\}|\d*,\d*\}))", re.DOTALL)


@lru_cache(maxsize=4096)  # a group's completions share their answer
def _one_number(answer: str) -> Fraction | int | None:
    return one_number(answer)


def is_numerically_equal(completion: str, answer: str, tolerance: Fraction) -> bool:
    """Compare the last numbers of both texts; false if one has none. Thoughts in <think> are no answer.

    Of an answer that is more than one number, the completion must end with all: a quarter is not three quarters, and 25
    cm^2 not 36 cm^2, though both have the same last digits.
    """
    completion = answer_in(completion)
    if (want := _one_number(answer)) is None:
        return has_digits(answer) and ends_with(completion, answer, tolerance)
    got = last_number(completion)
    return got is not None and (want == got or abs(Fraction(want) - Fraction(got)) <= tolerance)
