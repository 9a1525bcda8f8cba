r"""What a number is in an answer, and in a completion, for the rewards `numeric` and `math_verify`. Pure.

A number is a sign (+, -, or another dash that people type), a currency's sign, digits with commas or thin spaces
between thousands, decimals after a point, and a power of ten (1.5e-3, 1.5 \times 10^{-3}, 1.5 × 10⁻³, 1.5 million); or
a fraction of whole numbers (3/4, \frac{3}{4}, ½), also after a whole number (3 1/2). 50% is 50. What only contains
digits is none: the exponent of a unit (cm^2), an index (x_1), a time (10:30), a root, a power, a bound (<5), 5k.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

CURRENCY = "$€£¥₹₩₽₺₪₫฿₴₦¢"
_DASHES = "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"
_MAX_CHARACTERS, _MAX_EXPONENT = 100, 400
_WINDOW = 2 * _MAX_CHARACTERS
"""Characters in which the end of a completion is looked at: it may be long, and may be one number."""
_CONTEXT = 16
"""Characters before a number that may make it a part of something."""

# One spelling
_ZEROS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALES = "(?i:" + "|".join(_ZEROS) + ")"
_UNUSUAL = re.compile(
    rf"[\\{CURRENCY}{_DASHES}\u00bc-\u00be\u2150-\u215e\u2009\u202f\u00a0{{⁰¹²³⁴-⁹]|\d 0\d\d|\d(?:\s+|-){_SCALES}"
)
_SCALED = re.compile(rf"(?<![\w.,/])(\d{{1,15}}(?:,\d{{3}})*(?:\.\d{{1,15}})?)(?:\s+|-)({_SCALES})s?(?![^\W_])")
# Possessive: a completion may be groups without end, and each would be tried as the last one.
_GROUPS = re.compile(r"(?<![\w.,/])(?<!\d )\d{1,3}(?: \d{3})++(?! ?\d)")
_THIN = re.compile(r"(?<=\d)(?:\\[,;:! ]|[\u2009\u202f\u00a0]|\{,\})(?=\d{3}(?!\d))")
_RAISED = re.compile("(?<=10)([⁺⁻]?)([⁰¹²³⁴-⁹]+)")
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_FRAC = re.compile(r"\\[dt]?frac\s*(?:\{\s*(-?\d+)\s*\}|(\d))\s*(?:\{\s*(-?\d+)\s*\}|(\d))")
_OPERAND = re.compile(r"[\w.)\]}+-]\s*$")

# A number. A sign counts only if no word, number or bracket precedes it, so 12-5 ends with 5 and x=-5 with -5.
_SIGN = rf"(?:(?<![\w.)\]}}])[+-](?=[\d.\\{CURRENCY}])(?:\\?[{CURRENCY}]\s?)?)?"
_DIGITS = r"(?:(?<![\d.])\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_RATIO = r"(?<![\d.,/])\d+\s?/\s?\d+(?!\d|/|\.\d)"  # so that a date is not a fraction
_MIXED = r"(?<![\d.,/])\d+[^\S\n]+\d+/\d+(?!\d|/|\.\d)"
_TEN = r"(?:\s*(?:\\times|\\cdot|[×·*x])\s*10\s*\^\s*(?:\{\s*[+-]?\d+\s*\}|[+-]?\d+))"
_POWER = r"(?<![\d.,])10\s*\^\s*(?:\{\s*[+-]?\d+\s*\}|[+-]?\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+|{_TEN})?"
_NUMBER = re.compile(rf"(?=[\d.+\-\\{CURRENCY}]){_SIGN}(?:{_MIXED}|{_RATIO}|{_POWER}|{_DECIMAL})")
_TIMES_TEN = re.compile(r"\s*(?:times|cdot|[×·*x])?\s*(?<![\d.])10\s*\^\s*\{?\s*([+-]?\d+)\s*\}?$")
_MARKS = str.maketrans("", "", f"\\{CURRENCY},")
_DIGIT = re.compile("[\\d\u00bc-\u00be\u2150-\u215e]")
_AFTER_A_WORD = re.compile(r"(?<![\\\w])[A-Za-z]{2,}\s+(-?\d{1,15})$")
_WHOLE = re.compile(r"\s*(-?\d{1,15})\s*")
"""How most numbers and most answers are written, which is found ten times faster."""
_GOES_ON = re.compile(rf"[^.!,;\s*]|\s*[^.!,;\s*A-Za-z]|\s*[A-Za-z](?!\w)|\s*{_SCALES}")

# Digits that are no number by themselves
_EXPONENT_OR_INDEX = re.compile(r"(?:[A-Za-z\}]\s*\^\s*\{?\s*-?|_\s*\{?\s*)$")
_UNIT = re.compile(r"\b(?:[mcdk]?m|in|ft|yd|mi|s)$")
_PART_BEFORE = re.compile(
    r"(?:\d\s*\^\s*\{?\s*|\d\s?:|\\sqrt\s*(?:\[[^\]]*\])?\s*\{?\s*|√\s*\(?|\b(?:sqrt|log|ln|sin|cos|tan)\s*\(\s*|\}\s*\{\s*|[A-Za-z)]\s?/\s?|(?:\\pm|±)\s*"
    r"|(?:≤|≥|\\leq?|\\geq?|\\lt|\\gt|<=?|>=|\w\s+>)\s*|(?:^|[\s(:$])>|\d\s*[*×·]\s*)$"
)
_PART_AFTER = re.compile(r"\s?(?:\^|[²³¹⁰⁴-⁹]|:\d|\\pi\b|π|\\sqrt|√|[xyzn](?!\w))|(?:k|[mb]n)(?!\w)")
_TUPLE_BEFORE = re.compile(r"[(\[]\s*[^()\[\]]*\d\s*[,;]\s*$")
_TUPLE_AFTER = re.compile(r"\s*[)\]]")

# What may be around an answer's number
_SAYS = re.compile(r"(?i)\banswer(?: is)?\b:?")
_AROUND = re.compile(r"[*_`#$\s\"']+|\\(?:boxed|text|mathrm|mathbf|left|right|quad|approx)\b|\\[,;:! ]|[{}]")
_EQUALS = re.compile(r"(?<![<>!])=")
_VARIABLE = re.compile(r"^\s*[A-Za-z]\w?\s*=\s*")
_IN_WORDS = re.compile(r"\w-\w|-(?=[A-Za-z])|[:,](?=\s)")
_OPERATOR = re.compile(r"[-+*/^<>≤≥±√π∞|:×·²³]|\\(?!%)|\d|\b(?:or|to|and)\b|[A-Za-z]\(")

# Words
_WORD = re.compile(r"(?<![\\\w])[^\W\d_]{3,}")
_NO_WORD = re.compile(r"\\(?:begin|end|operatorname)\s*\{\w+\*?\}")
_FUNCTION = re.compile(r"\b(?:(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|exp|sqrt|max|min|lim|det|mod|gcd|lcm)\b")

# An answer of more than one number, token by token
_NOISE = re.compile(r"\\(?:boxed|text|mathrm|mathbf|left|right|quad)\b|\\[,;:! ]|[\s*`${}\"'\\]")
_ENDS = " \t\r\n.!$*`\"'}"
_JOINS = "+-*/^,;.([<>≤≥±√|:"


class _Number(NamedTuple):
    """A number in a text: its value, None if it is not one by itself, and where it is."""

    value: Fraction | int | None
    start: int
    end: int


class _Token(NamedTuple):
    """A number's value, or one other character, and where it begins and ends."""

    value: Fraction | int | str
    start: int
    end: int


def answer_in(completion: str) -> str:
    """Return a completion without its thoughts: what comes after the last </think>, and before another <think>."""
    return completion.rpartition("</think>")[2].partition("<think>")[0]


def normalized(text: str) -> str:
    r"""Return a text with one spelling of dashes, fractions, thousands and powers of ten.

    1\,200 and 1.2 thousand are 1200, 1 000 is 1000, \frac34 and ¾ are 3/4, and 10⁻³ is 10^{-3}.
    """
    if not _UNUSUAL.search(text):
        return text
    for dash in _DASHES:
        text = text.replace(dash, "-")
    text = _RAISED.sub(_plain_power, _THIN.sub("", text.replace("\\!", "").replace("\\$", "$")))
    text = _SCALED.sub(_plain_scale, _GROUPS.sub(_plain_groups, text))
    return _FRAC.sub(_plain_fraction, _VULGAR.sub(_plain_vulgar, text))


def boxed(text: str) -> str | None:
    r"""Return what the last \boxed{...} of a text holds; None if there is none, or it does not end."""
    _, found, rest = text.rpartition(r"\boxed")
    depth, inside = 0, rest.lstrip()
    for place, mark in enumerate(inside):
        depth += (mark == "{") - (mark == "}")
        if depth == 0:
            return inside[1:place] if found and place else None
    return None


def has_digits(text: str) -> bool:
    """Return whether a text has a number, or a part of one."""
    return _DIGIT.search(text) is not None


def is_words(answer: str) -> bool:
    """Return whether an answer is words of three or more letters, and no number: `Paris`, which is no product."""
    text = _AROUND.sub(" ", _NO_WORD.sub("", answer))
    return not has_digits(text) and _WORD.search(text) is not None and _FUNCTION.search(text) is None


def last_number(text: str) -> Fraction | int | None:
    """Return the exact value of the last number in a text; None if there is none, or the last is part of something.

    Numbers of more than 100 characters, or with an exponent beyond 400, do not count: comparing them would take
    forever.
    """
    if (digit := _DIGIT.search(text[::-1])) is None:
        return None
    end = len(text) - digit.start()
    plain = _AFTER_A_WORD.search(text, max(0, end - _CONTEXT), end)
    if plain and not _GOES_ON.match(text, end):
        return int(plain[1])
    found = None
    for window in (3 * _CONTEXT, _WINDOW):  # a completion may be long, and a number too
        found = _last(normalized(text[max(0, end - window) : end + _CONTEXT]))
        if found and (found.start > _CONTEXT or window >= end):
            break
    return found.value if found else None


def one_number(answer: str) -> Fraction | int | None:
    """Return the value of an answer that is one number, with words or marks around it; None if it is more or less."""
    if plain := _WHOLE.fullmatch(answer):
        return int(plain[1])
    text = _final(normalized(answer))
    found = list(_numbers(text))
    if len(found) != 1:
        return None
    before = _VARIABLE.sub("", _AROUND.sub(" ", text[: found[0].start]).rstrip(f"{CURRENCY} ") + " ")
    around = _IN_WORDS.sub("", f"{before}\n{_AROUND.sub(' ', text[found[0].end :])}")
    return None if _OPERATOR.search(around) else found[0].value


def ends_with(completion: str, answer: str, tolerance: Fraction) -> bool:
    """Return whether a completion ends with an answer of more than one number: numbers by value, the rest by text."""
    wanted = _tokens(_final(normalized(answer)).rstrip(_ENDS))
    window = max(_WINDOW, 4 * len(answer))
    given = _tokens(normalized(completion.rstrip()[-window:]).rstrip(_ENDS))
    if not wanted or len(given) < len(wanted):
        return False
    *before, first = given[: len(given) - len(wanted) + 1]
    parted = not before or _is_parted(before[-1], first)
    return parted and all(map(lambda one, other: _is_same(one, other, tolerance), given[-len(wanted) :], wanted))


def _final(answer: str) -> str:
    """Return the end of an answer that shows its steps: after ####, in the last box, or after the only =."""
    answer = _SAYS.split(answer.rpartition("####")[2])[-1]
    if (inside := boxed(answer)) is not None:
        return inside
    *left, right = _EQUALS.split(answer)
    return right if len(left) == 1 and has_digits(right) else answer


def _last(text: str) -> _Number | None:
    matches = reversed(list(_NUMBER.finditer(text)))
    return next((_number(match) for match in matches if not _is_mark(match)), None)


def _numbers(text: str) -> Iterator[_Number]:
    return (_number(match) for match in _NUMBER.finditer(text) if not _is_mark(match))


def _is_mark(match: re.Match[str]) -> bool:
    """Whether it is the exponent of a unit or an index, which is no number."""
    before = _before(match)
    return bool(_EXPONENT_OR_INDEX.search(before) or (match[0] in ("2", "3") and _UNIT.search(before)))


def _number(match: re.Match[str]) -> _Number:
    text, end = match.string, match.end()
    whole = not (_PART_BEFORE.search(_before(match)) or _PART_AFTER.match(text, end))
    if whole and _TUPLE_AFTER.match(text, end):
        whole = not _TUPLE_BEFORE.search(text, max(0, match.start() - _MAX_CHARACTERS), match.start())
    return _Number(_value(match[0]) if whole else None, match.start(), end)


def _before(match: re.Match[str]) -> str:
    return match.string[max(0, match.start() - _CONTEXT) : match.start()]


@lru_cache(maxsize=4096)
def _value(number: str) -> Fraction | int | None:
    if len(number) > _MAX_CHARACTERS:
        return None
    plain = number.translate(_MARKS)
    sign = -1 if plain.startswith("-") else 1
    plain = plain.lstrip("+- ")
    if plain.isdigit():
        return sign * int(plain)
    mantissa, exponent = _with_exponent(plain)
    *whole, ratio = re.sub(r"\s*/\s*", "/", mantissa).split()
    numerator, _, denominator = ratio.partition("/")
    if abs(exponent) > _MAX_EXPONENT or (denominator and int(denominator) == 0):
        return None
    value = Fraction(numerator) / int(denominator or 1) * Fraction(10) ** exponent
    return sign * (value + (int(whole[0]) if whole else 0))


def _with_exponent(plain: str) -> tuple[str, int]:
    if found := _TIMES_TEN.search(plain):
        return plain[: found.start()].strip() or "1", int(found[1])
    mantissa, _, exponent = plain.lower().partition("e")
    return mantissa, int(exponent or 0)


def _plain_fraction(found: re.Match[str]) -> str:
    over, under = found[1] or found[2], found[3] or found[4]
    if "-" not in over + under:
        return f"{_gap(found)}{over}/{under}"
    # A sign within a fraction is its own, where nothing comes before it that has one or is multiplied.
    negative = "-" if over.startswith("-") != under.startswith("-") else ""
    return found[0] if _OPERAND.search(_before(found)) else f"{negative}{over.lstrip('-')}/{under.lstrip('-')}"


def _plain_groups(found: re.Match[str]) -> str:
    """Take plain spaces for those between thousands only if a group has a leading zero, and is no number by itself."""
    return found[0].replace(" ", "") if " 0" in found[0] else found[0]


def _plain_scale(found: re.Match[str]) -> str:
    whole, _, decimals = found[1].replace(",", "").partition(".")
    zeros = _ZEROS[found[2].lower()]
    digits, rest = whole + decimals[:zeros].ljust(zeros, "0"), decimals[zeros:]
    return f"{digits}.{rest}" if rest else digits


def _plain_vulgar(found: re.Match[str]) -> str:
    value = Fraction(unicodedata.numeric(found[0])).limit_denominator(1000)
    return f"{_gap(found)}{value.numerator}/{value.denominator}"


def _plain_power(found: re.Match[str]) -> str:
    sign = "-" if found[1] == "⁻" else ""
    return f"^{{{sign}{''.join(str(unicodedata.digit(one)) for one in found[2])}}}"


def _gap(found: re.Match[str]) -> str:
    """Return a space after a whole number, of which the fraction is a part."""
    return " " if found.string[: found.start()][-1:].isdigit() else ""


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    place = 0
    for match in _NUMBER.finditer(text):
        tokens += _characters(text, place, match.start())
        value = _value(match[0])
        tokens.append(_Token(match[0] if value is None else value, match.start(), match.end()))
        place = match.end()
    return [*tokens, *_characters(text, place, len(text))]


def _characters(text: str, start: int, end: int) -> Iterator[_Token]:
    noise = {place for found in _NOISE.finditer(text, start, end) for place in range(*found.span())}
    return (
        _Token(text[place].casefold(), place, place + 1)
        for place in range(start, end)
        if place not in noise and text[place] not in CURRENCY
    )


def _is_parted(before: _Token, first: _Token) -> bool:
    """Return whether what comes before an answer is no part of it."""
    if before.value == "=" or (before.value == ":" and before.end < first.start):
        return True
    return before.end < first.start and not (isinstance(before.value, str) and before.value in _JOINS)


def _is_same(one: _Token, other: _Token, tolerance: Fraction) -> bool:
    if isinstance(one.value, str) or isinstance(other.value, str):
        return one.value == other.value
    return one.value == other.value or abs(Fraction(one.value) - Fraction(other.value)) <= tolerance
