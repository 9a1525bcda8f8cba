"""The experts of a mixture that vLLM generates with on a CPU: one adapter for every token.

vLLM's experts for CPUs pack their weights, and take no adapter: an engine that has adapters on experts does not start.
Here an expert with weights G, U and D computes, for the tokens that the router sent to it,

    h = silu(x Gᵀ + (x A_gᵀ) B_gᵀ) * (x Uᵀ + (x A_uᵀ) B_uᵀ)
    y = h Dᵀ + (h A_dᵀ) B_dᵀ

and a token's output is the sum of its experts' y by the router's weights. B includes the adapter's scale, as in vLLM's
buffers, which these layers use as they are. A missing adapter is zero there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn.functional import linear, pad, silu

from lorarl_trainer.engine.vllm.names import CpuExperts
from lorarl_trainer.engine.vllm.patches.expert_buffers import expert_buffers
from lorarl_trainer.engine.vllm.patches.linear import FEWEST_ROWS

type Adapter = tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]
"""A [experts, rank, in] and B [experts, out, rank], each of gate, up and down."""


def compute_experts(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    adapter: Adapter | None,
) -> torch.Tensor:
    """Return the output of a mixture's experts, [tokens, hidden].

    Args:
        x: [tokens, hidden].
        gate_up: each expert's gate and up, [experts, 2 inner, hidden].
        down: each expert's down, [experts, hidden, inner].
        weights: of a token's experts, [tokens, experts per token].
        chosen: the experts of each token, [tokens, experts per token].
        adapter: on all experts; None for none.
    """
    output, inner = torch.zeros_like(x), gate_up.shape[1] // 2
    for expert in chosen.unique().tolist():
        tokens, places = (chosen == expert).nonzero(as_tuple=True)
        count = len(tokens)
        # As in `linear.add_adapter`: with fewer rows, the number of threads would change the rounding.
        rows = pad(x[tokens], (0, 0, 0, max(0, FEWEST_ROWS - count)))
        both = linear(rows, gate_up[expert])
        gate, up = both[:, :inner], both[:, inner:]
        if adapter:
            (a_gate, a_up, a_down), (b_gate, b_up, b_down) = adapter
            gate.addmm_(linear(rows, a_gate[expert]), b_gate[expert].t())
            up.addmm_(linear(rows, a_up[expert]), b_up[expert].t())
        hidden = silu(gate) * up
        result = linear(hidden, down[expert])
        if adapter:
            result.addmm_(linear(hidden, a_down[expert]), b_down[expert].t())
        output.index_add_(0, tokens, result[:count] * weights[tokens, places, None].to(result.dtype))
    return output


@cache
def unpacked_experts() -> type:
    """Return what computes a layer's experts in the place of vLLM's CPUFusedMOE. vLLM must have been set up."""
    base: Any = getattr(*CpuExperts.CPUFusedMOE)

    class UnpackedExperts(base):
        """Leaves the weights as they are. vLLM's own code routes the tokens, and then calls `forward_method`."""

        def __init__(self, layer: torch.nn.Module) -> None:
            self.isa, self.forward_method = "none", self._forward
            self.adapter: Adapter | None = None
            self.record: Callable[[torch.Tensor], None] | None = None  # takes the experts of a step's tokens

        def _forward(
            self, layer: Any, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, activation: Any, *_: Any
        ) -> torch.Tensor:
            assert activation.value == "silu", f"experts with {activation} are refused before a start"
            if self.record is not None:
                self.record(chosen)
            return compute_experts(x, layer.w13_weight, layer.w2_weight, weights, chosen, self.adapter)

    return UnpackedExperts


@cache
def one_adapter_experts() -> type:
    """Return the layer that holds the experts' adapter. vLLM must have been set up."""
    base: Any = expert_buffers()

    class OneAdapterExperts(base):
        """vLLM's own buffers."""

        def create_lora_weights(self, *arguments: Any, **options: Any) -> None:
            super().create_lora_weights(*arguments, **options)
            (gate_a, up_a), (down_a,) = self.w13_lora_a_stacked, self.w2_lora_a_stacked
            (gate_b, up_b), (down_b,) = self.w13_lora_b_stacked, self.w2_lora_b_stacked
            # vLLM's tensors are [adapters, experts, ...], with one adapter.
            adapter = (gate_a[0], up_a[0], down_a[0]), (gate_b[0], up_b[0], down_b[0])
            self.base_layer.routed_experts.quant_method.cpu_fused_moe.adapter = adapter

        @classmethod
        def can_replace_layer(cls, **arguments: Any) -> bool:
            experts = getattr(arguments["source_layer"], "routed_experts", None)
            method = getattr(experts, "quant_method", None)
            plain = isinstance(getattr(method, "cpu_fused_moe", None), unpacked_experts())
            return plain and super().can_replace_layer(**arguments)

    OneAdapterExperts.__name__ = base.__name__
    return OneAdapterExperts
