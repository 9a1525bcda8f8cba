"""How many adapters an engine holds at a time, where a service has several; a run has one."""

from __future__ import annotations

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu, Host
from lorarl_trainer.models.model_sizes import ModelSizes
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.planning.precision import PRECISIONS

_SHARE = 1 / 32
"""Of all memory: as much as the buffers of several adapters take at most. The rest is for base, cache and training."""


def adapter_slots(spec: LoRARLJobSpec, model: ModelSizes, there: Gpu | Host, most: int) -> int:
    """Return how many adapters the engine has buffers for: `most` of them, or as many as are small enough."""
    if most == 1 or why_one(spec, model) is not None:
        return 1
    each = AdapterSize.of(spec.adapter, model).served_beside(1) * PRECISIONS[spec.precision].bytes
    return max(1, min(most, int(_SHARE * there.total) // each))


def why_one(spec: LoRARLJobSpec, model: ModelSizes) -> str | None:
    """Return why an engine has one adapter at a time whatever is asked for; None if it may have several."""
    if model.experts or model.frozen_experts:
        return "the layers of a mixture of experts take one adapter"
    if model.states or model.key_widths:
        return "layers that differ in their kind take one adapter"
    if spec.model.quantization != "none":
        return "quantized layers take one adapter"
    if spec.rollout.adapter_sync == "disk":
        return "rollout.adapterSync is disk"
    return "workers share the model" if spec.world_size > 1 else None
