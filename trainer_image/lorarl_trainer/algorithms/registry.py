"""The algorithms by `algorithm.type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_trainer.algorithms.base import Algorithm
from lorarl_trainer.algorithms.cispo import Cispo
from lorarl_trainer.algorithms.dapo import Dapo
from lorarl_trainer.algorithms.distillation import Distillation
from lorarl_trainer.algorithms.dpo import Dpo
from lorarl_trainer.algorithms.dr_grpo import DrGrpo
from lorarl_trainer.algorithms.grpo import Grpo
from lorarl_trainer.algorithms.gspo import Gspo
from lorarl_trainer.algorithms.maxrl import MaxRl
from lorarl_trainer.algorithms.ppo import Ppo
from lorarl_trainer.algorithms.reinforce import Reinforce
from lorarl_trainer.algorithms.reinforce_plus_plus import ReinforcePlusPlus, ReinforcePlusPlusBaseline
from lorarl_trainer.algorithms.rloo import Rloo
from lorarl_trainer.algorithms.sapo import Sapo
from lorarl_trainer.algorithms.sft import Sft

ALGORITHMS: Mapping[str, Callable[[AlgorithmSpec, int], Algorithm]] = {
    "grpo": Grpo,
    "dr_grpo": DrGrpo,
    "rloo": Rloo,
    "reinforce": Reinforce,
    "reinforce_plus_plus": ReinforcePlusPlus,
    "reinforce_plus_plus_baseline": ReinforcePlusPlusBaseline,
    "maxrl": MaxRl,
    "dapo": Dapo,
    "gspo": Gspo,
    "cispo": Cispo,
    "sapo": Sapo,
    "ppo": Ppo,
    "distillation": Distillation,
    "sft": Sft,
    "dpo": Dpo,
}


def get_algorithm(spec: AlgorithmSpec, max_response_tokens: int) -> Algorithm:
    """Return the algorithm of a job whose completions have at most so many tokens."""
    return ALGORITHMS[spec.type](spec, max_response_tokens)
