"""The algorithms by `algorithm.type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_trainer.algorithms.base import Algorithm
from lorarl_trainer.algorithms.grpo import Grpo
from lorarl_trainer.algorithms.sft import Sft

ALGORITHMS: Mapping[str, Callable[[AlgorithmSpec], Algorithm]] = {"grpo": Grpo, "sft": Sft}


def get_algorithm(spec: AlgorithmSpec) -> Algorithm:
    """Return the algorithm of a job."""
    return ALGORITHMS[spec.type](spec)
