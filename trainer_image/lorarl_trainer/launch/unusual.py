"""Settings that the contract allows, and that are more likely a mistake."""

from __future__ import annotations

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.algorithms.grpo import Grpo
from lorarl_trainer.algorithms.registry import get_algorithm

HIGHEST_LEARNING_RATE = 0.05
"""LoRA trains with 1e-5 to 1e-3. Tiny models take more; above this, AdamW moves every weight too far in one step."""


def unusual_settings(spec: LoRARLJobSpec) -> list[str]:
    """Return a warning for each."""
    warnings = []
    rate = spec.trainer.learning_rate
    if rate > HIGHEST_LEARNING_RATE:
        warnings.append(
            f"spec.trainer.learningRate is {rate:g}. LoRA takes 1e-5 to 1e-3; this rate will likely ruin the adapter."
        )
    if spec.separate_engines and spec.on_gpu and not spec.rollout.max_staleness:
        warnings.append(
            "spec.rollout.separateEngines is set, and spec.rollout.maxStaleness is 0: engines and trainer take turns, "
            "so each one's GPUs are idle while the other works. Set maxStaleness: 1, or remove separateEngines."
        )
    algorithm = get_algorithm(spec.algorithm, spec.rollout.max_response_tokens)
    if isinstance(algorithm, Grpo) and algorithm.scales_by_std and algorithm.reward_kl:
        warnings.append(
            f"spec.algorithm.kl.placement is reward, and spec.algorithm.type {spec.algorithm.type} divides by the "
            "standard deviation of a group's rewards. Groups with equal rewards then train at full strength what "
            "their penalties differ by, which is mostly chance. Remove placement, or choose another type."
        )
    return warnings
