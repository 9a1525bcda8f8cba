"""Soft adaptive policy optimisation (SAPO, arXiv:2511.20347): a soft gate takes the place of clipping."""

from __future__ import annotations

from typing import Any

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_api.v1alpha1.algorithm_options import SapoSpec
from lorarl_trainer.algorithms.grpo import Grpo


class Sapo(Grpo):
    """GRPO's advantages. A token's weight fades as its ratio leaves 1."""

    def loss_options(self, spec: AlgorithmSpec) -> dict[str, Any]:
        """Take the gate with its two temperatures."""
        options = spec.sapo or SapoSpec()
        return {"surrogate": "gated", "gate": (options.positive_temperature, options.negative_temperature)}
