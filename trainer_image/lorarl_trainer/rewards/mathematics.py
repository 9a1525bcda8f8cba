"""The reward math_verify. It runs in a scoring process, like a user's function, because SymPy may take forever."""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from math_verify import parse, verify
from sympy import Expr  # type: ignore[import-untyped]  # ships no types

# The scoring process has its own time limit, so math-verify's is off. It would warn about that.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_WITH_EXPONENT = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+))[eE]([+-]?\d+)\s*")


def score(prompt: Any, completion: str, answer: str, row: dict[str, Any]) -> float:
    r"""Return 1 if the completion's final expression equals the answer mathematically, else 0.

    If the answer is one expression, the final expression is the last \boxed one. math-verify itself takes several
    \boxed ones for parts of one answer, so it would reject a completion that corrects itself.

    Raises:
        ValueError: the answer contains no mathematical expression.
    """
    gold = _parse_answer(answer)
    if not gold:
        raise ValueError(f"math-verify finds no expression in the answer {answer!r}")
    if isinstance(gold[0], Expr) and (last := completion.rfind(r"\boxed")) > 0:
        completion = completion[last:]
    return float(verify(gold, parse(completion, parsing_timeout=None), timeout_seconds=None))


@lru_cache(maxsize=4096)
def _parse_answer(answer: str) -> Any:
    r"""Parse an answer. Answers are mostly bare (3/4, \frac{3}{4}); math-verify reads LaTeX between delimiters."""
    if answer.count("$") == 1:  # a price: -$5, \$1,200
        answer = answer.replace("\\$", "").replace("$", "")
    if number := _WITH_EXPONENT.fullmatch(answer):
        answer = rf"{number[1]} \times 10^{{{int(number[2])}}}"  # in LaTeX, 1e-5 is a product with Euler's number
    delimited = any(mark in answer for mark in ("$", "\\boxed", "\\(", "\\["))
    return parse(answer if delimited else f"${answer}$", parsing_timeout=None)
