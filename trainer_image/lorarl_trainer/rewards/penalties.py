"""Penalties of a completion's form, between 0 and -1. They are added to what it does right, each with its weight."""

from __future__ import annotations

from lorarl_trainer.rewards.builtin import Measure
from lorarl_trainer.rewards.scores import ToScore


def length_penalty(free_tokens: int, max_tokens: int) -> Measure:
    """Return the soft overlong punishment of DAPO (arXiv:2503.14476, equation 13).

    It is 0 up to `free_tokens`, -1 from `max_tokens`, and linear between them.
    """

    def measure(sample: ToScore) -> float:
        over = (sample.tokens - free_tokens) / (max_tokens - free_tokens)
        return 0.0 - min(1.0, max(0.0, over))

    return measure


def repetition_penalty(words: int) -> Measure:
    """Return the penalty of repeated n-grams: minus the share of runs of `words` words that occurred before.

    As in arXiv:2502.03373, appendix: 0 for a text without repetition, and near -1 for one that only repeats itself.
    """

    def measure(sample: ToScore) -> float:
        text = sample.completion.lower().split()
        runs = [tuple(text[start : start + words]) for start in range(len(text) - words + 1)]
        return 0.0 if not runs else len(set(runs)) / len(runs) - 1.0

    return measure
