"""The reward math_verify: runs in a scoring process, as a user's function does, because SymPy may take for ever."""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from math_verify import parse, verify
from sympy import Expr  # type: ignore[import-untyped]  # ships no types

# The scoring process has its own time limit, so math-verify's are off; it would warn of that.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_WITH_EXPONENT = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+))[eE]([+-]?\d+)\s*")


def score(prompt: Any, completion: str, answer: str, row: dict[str, Any]) -> float:
    r"""Give 1 where the completion's final expression equals the answer mathematically, else 0.

    Where the answer is one expression, that is the last \boxed one: math-verify itself takes several for the parts of one answer, and
    so would find a completion wrong that corrects itself.

    Raises:
        ValueError: The answer holds no mathematical expression.
    """
    gold = _parse_answer(answer)
    if not gold:
        raise ValueError(f"math-verify finds no expression in the answer {answer!r}")
    if isinstance(gold[0], Expr) and (last := completion.rfind(r"\boxed")) > 0:
        completion = completion[last:]
    return float(verify(gold, parse(completion, parsing_timeout=None), timeout_seconds=None))


@lru_cache(maxsize=4096)
def _parse_answer(answer: str) -> Any:
    r"""Answers in data are mostly bare (3/4, \frac{3}{4}), while math-verify reads LaTeX between delimiters."""
    if answer.count("$") == 1:  # a price: -$5, \$1,200
        answer = answer.replace("\\$", "").replace("$", "")
    if number := _WITH_EXPONENT.fullmatch(answer):
        answer = rf"{number[1]} \times 10^{{{int(number[2])}}}"  # in LaTeX, 1e-5 is a product with Euler's number
    delimited = any(mark in answer for mark in ("$", "\\boxed", "\\(", "\\["))
    return parse(answer if delimited else f"${answer}$", parsing_timeout=None)
