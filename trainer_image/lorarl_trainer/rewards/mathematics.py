"""The reward math_verify: runs in a scoring process, as a user's function does, because SymPy may take for ever."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from math_verify import parse, verify

# The scoring process has its own time limit, so math-verify's are off; it would warn of that.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def score(prompt: Any, completion: str, answer: str, row: dict[str, Any]) -> float:
    """Give 1 where the completion's final expression equals the answer mathematically, else 0.

    Raises:
        ValueError: The answer holds no mathematical expression.
    """
    gold = _parse_answer(answer)
    if not gold:
        raise ValueError(f"math-verify finds no expression in the answer {answer!r}")
    return float(verify(gold, parse(completion, parsing_timeout=None), timeout_seconds=None))


@lru_cache(maxsize=4096)
def _parse_answer(answer: str) -> Any:
    r"""Answers in data are mostly bare (3/4, \frac{3}{4}), while math-verify reads LaTeX between delimiters."""
    delimited = any(mark in answer for mark in ("$", "\\boxed", "\\(", "\\["))
    return parse(answer if delimited else f"${answer}$", parsing_timeout=None)
