"""Settings that the contract allows, and that are more likely a mistake."""

from __future__ import annotations

from lorarl_api.v1alpha1 import LoRARLJobSpec

HIGHEST_LEARNING_RATE = 0.05
"""LoRA trains with 1e-5 to 1e-3. Tiny models take more; above this, AdamW moves every weight too far in one step."""


def unusual_settings(spec: LoRARLJobSpec) -> list[str]:
    """Return a warning for each."""
    rate = spec.trainer.learning_rate
    if rate <= HIGHEST_LEARNING_RATE:
        return []
    return [f"spec.trainer.learningRate is {rate:g}. LoRA takes 1e-5 to 1e-3; this rate will likely ruin the adapter."]
