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
    """Yield a warning for each reward that compares numbers, if answers have none: no completion is right there.

    `rewards` are by their paths in the manifest.
    """
    for path, reward in rewards.items():
        answered = [row for row in rows if row.answer is not None and row.answer.strip()]
        if reward.type != "numeric" or not (bad := [row for row in answered if last_number(row.answer or "") is None]):
            continue
        yield (
            f"{path}.type: numeric, but {len(bad):,} of {len(rows):,} answers have no number, first that of row "
            f"{bad[0].number} ({brief(bad[0].answer)}), so every completion gets 0 there. Fix them, or remove those "
            "rows."
        )


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

# A sign counts only if no word, number or bracket precedes it, so 12-5 ends with 5 and x=-5 with -5.
_SIGN = r"(?:(?<![\w.)\]])[+-](?:\\?[$€£¥])?)?"
_DIGITS = r"(?:(?<!\d)\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_FRACTION = r"(?<![\d.,/])\d+/\d+(?![\d./])"  # so that a date is not a fraction
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
_NUMBER = re.compile(f"{_SIGN}(?:{_FRACTION}|{_DECIMAL})")
_TAIL_REVERSED = re.compile(r"\d[\d.,eE+/-]*(?:[$€£¥]\\?[+-])?")
_CURRENCY_AND_COMMAS = str.maketrans("", "", "\\$€£¥,")
_MAX_CHARACTERS, _MAX_EXPONENT = 100, 400


def last_number(text: str) -> Fraction | int | None:
    """Return the exact value of the last number in a text; None if there is none.

    A number has an optional sign (+, -, or the minus sign U+2212), digits with or without commas between thousands,
    decimals after a point, and an exponent (1.5e-3); or it is a fraction of whole numbers a/b. Currency and percent
    signs are ignored: 50% is 50, -$5 is -5. Numbers of more than 100 characters, or with an exponent beyond 400, do not
    count: comparing them would take forever.
    """
    text = text.replace("\N{MINUS SIGN}", "-")
    # Search from the end, because a completion may be long: the last digit, and the characters of a number before it.
    tail = _TAIL_REVERSED.search(text[::-1])
    if tail is None:
        return None
    start, end = len(text) - tail.end(), len(text) - tail.start()
    if tail[0].isdigit() and len(tail[0]) <= _MAX_CHARACTERS:
        return int(tail[0][::-1])
    numbers = _NUMBER.findall(text, max(start, end - 2 * _MAX_CHARACTERS), end)
    return _value(numbers[-1]) if numbers else None


def _value(number: str) -> Fraction | None:
    number = number.translate(_CURRENCY_AND_COMMAS)
    numerator, _, denominator = number.partition("/")
    exponent = numerator.lower().partition("e")[2]
    if len(number) > _MAX_CHARACTERS or (exponent and abs(int(exponent)) > _MAX_EXPONENT):
        return None
    if denominator and int(denominator) == 0:
        return None
    return Fraction(numerator) / int(denominator or 1)


_last_number_of_answer = lru_cache(maxsize=4096)(last_number)  # a group's completions share their answer


def is_numerically_equal(completion: str, answer: str, tolerance: Fraction) -> bool:
    """Compare the last numbers of both texts; false if one has none."""
    want = _last_number_of_answer(answer)
    got = last_number(completion)
    if want is None or got is None:
        return False
    return want == got or abs(Fraction(want) - Fraction(got)) <= tolerance
