"""Group sequence policy optimisation (GSPO, arXiv:2507.18071): the ratio is that of a whole completion."""

from __future__ import annotations

from typing import Any

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_api.v1alpha1.algorithm_options import GspoSpec
from lorarl_trainer.algorithms.grpo import Grpo


class Gspo(Grpo):
    """GRPO's advantages. The ratio is the geometric mean of a completion's token ratios, and is clipped as one."""

    def loss_options(self, spec: AlgorithmSpec) -> dict[str, Any]:
        """Take the ratio of sequences, with its own range."""
        options = spec.gspo or GspoSpec()
        return {
            "ratio": "sequence",
            "clip_range": options.clip_range_low,
            "clip_range_high": options.clip_range_high,
        }
