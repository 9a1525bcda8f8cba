"""CISPO, clipped importance-sampling weights (MiniMax-M1, arXiv:2506.13585): no token loses its gradient."""

from __future__ import annotations

from typing import Any

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_api.v1alpha1.algorithm_options import CispoSpec
from lorarl_trainer.algorithms.grpo import Grpo


class Cispo(Grpo):
    """GRPO's advantages. The ratio is a weight of the token's gradient, cut from above."""

    def loss_options(self, spec: AlgorithmSpec) -> dict[str, Any]:
        """Let the ratio be a weight, of at most `maxWeight`."""
        return {"surrogate": "weighted", "clip_range_high": (spec.cispo or CispoSpec()).max_weight - 1}
