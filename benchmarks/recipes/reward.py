"""The reward of all recipes, for both systems: reasoning-gym's own scorer on the answer that a completion ends with."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from recipes.tasks import RECIPES

NUMBER, WORD = re.compile(r"-?\d+(?:\.\d+)?"), re.compile(r"[A-Za-z][A-Za-z-]*")
RIGHT = 0.99
"""A score from which an answer counts as right. Some scorers give a part of a point to a wrong one."""


def score(prompt: object, completion: str, answer: str, row: Mapping[str, Any]) -> float:
    """Return the reward of a completion, 0 to 1. The row has the recipe's name."""
    return scored(row["recipe"], completion, answer, row["entry"])


def scored(name: str, completion: str, answer: str, entry: str) -> float:
    """Return what reasoning-gym gives the last number or word of a completion; for the sums, 1 if it is the answer."""
    recipe = RECIPES[name]
    found = (NUMBER if recipe.answer == "number" else WORD).findall(completion)
    if not found:
        return 0.0
    if recipe.dataset is None:
        return float(float(found[-1]) == float(answer))
    return float(scorer(recipe.dataset)(found[-1], json.loads(entry)))


@functools.cache
def scorer(dataset: str) -> Callable[[str, Mapping[str, Any]], float]:
    """Return the scorer of a data set of reasoning-gym."""
    import reasoning_gym

    return reasoning_gym.get_score_answer_fn(dataset)
