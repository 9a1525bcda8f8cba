"""The buffers of the adapter on a mixture's experts, which `cpu_experts.py` and `gpu_experts.py` compute with.

vLLM has no door for this. Its layer for adapters on experts serves many adapters at a time, with kernels that look up
each token's. Of that layer only the buffers are made, and the methods that fill them. Its class keeps its name, by
which vLLM's manager knows it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from lorarl_trainer.engine.vllm.names import Experts


@cache
def expert_buffers() -> type:
    """Return the layer without its computations. vLLM must have been set up."""
    base: Any = Experts.FusedMoEWithLoRA

    class ExpertBuffers(base):
        def __init__(self, base_layer: Any) -> None:
            Experts.BaseLayerWithLoRA.__init__(self)
            self.base_layer, self.moe_config = base_layer, base_layer.moe_config
            parallel = self.moe_config.moe_parallel_config
            self.tp_size, self.tp_rank = parallel.tp_size, parallel.tp_rank
            self.device = base_layer.routed_experts.w13_weight.device
            self._w13_slices = 2  # gate and up
            self.n_slices = self.local_num_experts * (self._w13_slices + 1)

        def set_mapping(self, punica_wrapper: Any) -> None:
            """Do nothing: no token's adapter is looked up."""

        @classmethod
        def can_replace_layer(cls, **arguments: Any) -> bool:
            return arguments["lora_config"].max_loras == 1 and super().can_replace_layer(**arguments)

    ExpertBuffers.__name__ = base.__name__
    return ExpertBuffers
