"""Algorithms: one small file each. The trainer knows none of them; it takes per-token advantages and a loss choice."""

from lorarl_trainer.algorithms.base import Algorithm, LossChoice, get_algorithm

__all__ = ["Algorithm", "LossChoice", "get_algorithm"]
