"""Models that vLLM computes with layers that take adapters, but does not serve with any."""

from __future__ import annotations

from lorarl_trainer.engine.vllm.patches.models import FUSED
from lorarl_trainer.models.fsdp_families import FSDP_FAMILIES


def test_users_are_told_of_each_model_whose_adapters_only_lorarl_serves() -> None:
    """The engine gives them adapters, and the verdict and the model card say that vLLM by itself does not."""
    told = {family.architecture for family in FSDP_FAMILIES.values() if not family.serves_adapters}
    assert told == FUSED.keys()
