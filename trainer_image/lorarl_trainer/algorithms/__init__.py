"""Algorithms: one small file each. The trainer knows none of them; it takes advantages and a loss choice."""

from lorarl_trainer.algorithms.base import Algorithm

__all__ = ["Algorithm"]
