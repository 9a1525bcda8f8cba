"""The recipes: what is learned, and the settings that both systems share. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

DPO_BETA = 1.0
"""For both systems. Answers of two to four tokens need more than the usual 0.1, see docs/algorithms.md."""
DPO_LEARNING_RATE = 2e-5
"""For both systems. At the recipes' own rate both wander: their accuracy goes up and down by 20 points."""
INSTRUCTION = "Answer with only the final answer, nothing else."


@dataclass(frozen=True)
class Recipe:
    """One task.

    Attributes:
        title: what a person calls it.
        dataset: the name of reasoning-gym's data set; None for the sums of the demo.
        config: the data set's own settings, easy enough for a model of 135M parameters.
        answer: what counts as the answer in a completion: its last number, or its last word.
        response_tokens: the most tokens of a completion.
        train_rows: rows to train on. A task with few easy questions gets few rows.
    """

    name: str
    title: str
    dataset: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    answer: Literal["number", "word"] = "number"
    response_tokens: int = 24
    train_rows: int = 4096


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("sums", "sums of two-digit numbers"),
        Recipe(
            "chain_sum",
            "sums and differences of two or three digits",
            "chain_sum",
            {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1},
        ),
        Recipe(
            "products",
            "products",
            "products",
            {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
            train_rows=1024,
        ),
        Recipe(
            "basic_arithmetic",
            "two numbers and an operation",
            "basic_arithmetic",
            {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
        ),
        Recipe(
            "number_sequence",
            "next number of a sequence",
            "number_sequence",
            {"min_terms": 4, "max_terms": 6, "max_complexity": 1},
        ),
        Recipe(
            "needle_haystack",
            "who likes a thing in a short text",
            "needle_haystack",
            {"min_num_statements": 2, "max_num_statements": 4},
            "word",
        ),
    )
}


@dataclass(frozen=True)
class Settings:
    """How both systems train, in the terms of GRPO with LoRA.

    One update per step, on policy, without a KL penalty; advantages are divided by the group's standard deviation, and
    the loss is the mean over all tokens of a step.
    """

    prompts: int = 64
    group: int = 8
    prompt_tokens: int = 192
    rank: int = 32
    alpha: int = 64
    learning_rate: float = 1e-4
    temperature: float = 1.0
    steps: int = 60
    every: int = 10
    """Steps between two measurements on the held-out rows."""
    rows: int = 512
    """Held-out rows."""

    @property
    def completions(self) -> int:
        """Completions per step."""
        return self.prompts * self.group
