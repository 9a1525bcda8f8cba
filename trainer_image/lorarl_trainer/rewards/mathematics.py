"""The reward math_verify. It runs in a scoring process, like a user's function, because SymPy may take forever."""

from __future__ import annotations

import logging
import re
from decimal import Decimal
from functools import lru_cache
from typing import Any

from math_verify import parse, verify
from sympy import Expr, N  # type: ignore[import-untyped]  # ships no types

from lorarl_trainer.rewards.numbers import CURRENCY, answer_in, boxed, is_words, normalized

# The scoring process has its own time limit, so math-verify's is off. It would warn about that.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_MIXED = re.compile(r"(?<![\d.,/^])(\d{1,15})[^\S\n]+(\d{1,15})/(\d{1,15})(?!\d|/|\.\d)")
_SIGNS = CURRENCY.replace("$", "")
_PRICE = re.compile(rf"[{_SIGNS}]\s?(?=[-+]?\.?\d)|(?<=\d)\s?[{_SIGNS}]|(?<=-)\$(?=[\d.])")
_PLUS = re.compile(r"((?:^|[=(\[{,;:<>$*]|(?<![\\\w])(?:is|be|[A-Za-z]{3,}))\s*)\+(?=[\d.])")
_SCIENTIFIC = re.compile(
    r"(?<![\w.^/])(\d+(?:\.\d*)?|\.\d+)(?:\s*(?:\\times|\\cdot|[×·])\s*10\s*\^\s*(?:\{\s*([+-]?\d{1,3})\s*\}|([+-]?\d{1,3})(?!\d))"
    r"|[eE]([+-]?\d{1,3})(?!\w))"
)
_CHOICE = re.compile(r"\s*\(?([A-J])\)?[.:]?\s*")
_LETTER = r"([A-J])(?![\w'])(?!\W{0,8}(?:[,;/&+]|\\cup|\\cap)\W{0,8}[A-J](?![\w']))"
_NO_ARTICLE = r"(?!(?<=[AI])\s+(?!(?:because|since|as)\b)[a-z])"
_CHOSEN = re.compile(rf"\W*(?:\\(?:text|math)[a-z]*\s*\{{\W*)?(?:(?:[Cc]hoice|[Oo]ption)\W+)?{_LETTER}(?!\s+[a-z])")
_SAID = (
    re.compile(rf"(?i:answer)\s*(?i:is|:)*\W*(?i:(?:choice|option)\W*)?{_LETTER}{_NO_ARTICLE}"),
    re.compile(rf"(?i:choice|option)\s*(?i:is|:)*\W*{_LETTER}{_NO_ARTICLE}"),
)
"""What says a choice, the clearest first: who gives the answer may speak of the other options after it."""
_ALONE = re.compile(r"\(?([A-J])(?:[).:]+(?:\s[^\n]*)?)?")
_TIME = re.compile(r"\s*(\d{1,2}):(\d\d)(?::\d\d)?\s*")
_TINY, _CLOSE = 1e-3, 1e-4


def score(prompt: Any, completion: str, answer: str, row: dict[str, Any]) -> float:
    r"""Return 1 if the completion's final expression equals the answer mathematically, else 0.

    If the answer is one expression, the final expression is the last \boxed one. math-verify itself takes several
    \boxed ones for parts of one answer, so it would reject a completion that corrects itself. Words, times and the
    letters of a choice are compared as they are: math-verify takes them for products and quotients.

    Raises:
        ValueError: the answer contains no mathematical expression.
    """
    completion = answer_in(completion)
    if choice := _CHOICE.fullmatch(answer):
        return float(_chosen(completion) == choice[1])
    if is_words(answer) or _TIME.fullmatch(answer):
        return float(_text(_said(completion)) == _text(answer))
    gold = _parse_answer(answer)
    if not gold:
        raise ValueError(f"math-verify finds no expression in the answer {answer!r}")
    if isinstance(gold[0], Expr) and (last := completion.rfind(r"\boxed")) > 0:
        completion = completion[last:]
    given = parse(_written(completion), parsing_timeout=None)
    equal = verify(gold, given, allow_set_relation_comp=True, timeout_seconds=None)
    return float(equal and ("%" in answer or _is_close(gold[0], given[0])))


@lru_cache(maxsize=4096)
def _parse_answer(answer: str) -> Any:
    r"""Parse an answer. Answers are mostly bare (3/4, \frac{3}{4}); math-verify reads LaTeX between delimiters."""
    answer = _written(answer)
    if answer.count("$") == 1:  # a price: -$5, \$1,200
        answer = answer.replace("\\$", "").replace("$", "")
    delimited = any(mark in answer for mark in ("$", "\\boxed", "\\(", "\\["))
    return parse(answer if delimited else f"${answer}$", parsing_timeout=None)


def _written(text: str) -> str:
    """Return a text with numbers as math-verify reads them, also outside LaTeX: no currency, and 3 1/2 as 7/2.

    It would take the e of 1e-5 for Euler's number.
    """
    plain = _PLUS.sub(r"\1", _PRICE.sub("", normalized(text)))
    return _SCIENTIFIC.sub(_decimal, _MIXED.sub(_improper, plain))


def _decimal(found: re.Match[str]) -> str:
    return f"{Decimal(found[1]).scaleb(int(found[2] or found[3] or found[4])):f}"


def _improper(found: re.Match[str]) -> str:
    whole, over, under = map(int, found.groups())
    return f"{whole * under + over}/{under}" if over < under else found[0]


def _is_close(gold: Any, given: Any) -> bool:
    """Return whether two numbers are equal relative to their size. math-verify rounds both to six decimals."""
    if not all(isinstance(one, Expr) and one.is_number and one.is_finite for one in (gold, given)):
        return True
    want, got = N(gold), N(given)
    return bool(abs(want) >= _TINY or abs(want - got) <= _CLOSE * abs(want))


def _said(completion: str) -> str:
    r"""Return the final answer as text: in the last \boxed, or else the last line after the last `is` or colon."""
    if (inside := boxed(completion)) is not None:
        return inside
    last = completion.strip().rpartition("\n")[2]
    return re.split(r"\bis\b:?|:\s", last)[-1]


def _text(text: str) -> str:
    plain = re.sub(r"\\(?:text|mathrm|mathbf)\b|[*`${}\"']", " ", text)
    return " ".join(plain.split()).rstrip(".!").casefold()


def _chosen(completion: str) -> str | None:
    """Return the letter of a choice that a completion gives as its answer."""
    if (inside := boxed(completion)) is not None:
        found = _CHOSEN.match(inside)
        return found[1] if found else None
    for pattern in _SAID:
        if said := pattern.findall(completion):
            return str(said[-1])
    alone = _ALONE.fullmatch(completion.strip(" *$\n"))
    return alone[1] if alone else None
