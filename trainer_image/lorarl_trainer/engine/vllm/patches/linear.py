"""The linear layers that vLLM generates with: one adapter for every token, as three plain matrix products.

vLLM's own layers serve many adapters at a time. Their kernels look up each token's adapter, split the batch by adapter,
and use a float32 buffer. A rollout has exactly one adapter, so here a layer with base weight W and bias c computes

    y = x Wᵀ + c + (x Aᵀ) Bᵀ

Where vLLM fuses layers (q, k and v; gate and up), A stacks their A's and B has their B's along its diagonal. B includes
the adapter's scale, as in vLLM's buffers. vLLM loads adapters through `lora_a_stacked` and `lora_b_stacked`: here these
are views of A and B. A missing adapter is zero, so the layers need no case for it. On Hopper GPUs, a kernel of ours
computes the whole for few tokens (`linear_kernel.py`).
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch.nn.functional import linear, pad

from lorarl_trainer.engine.vllm.names import AdapterLayers
from lorarl_trainer.engine.vllm.quantization import quantized_method
from lorarl_trainer.kernels.quantized_linear import weight_of
from lorarl_trainer.models.gemma4 import values_are_keys

FEWEST_ROWS = 16
"""Rows of a product on CPU. MKL shares fewer rows out among threads so that their number changes the rounding."""
FEW_TOKENS = 128
"""On an H200 at 7B, all products of a decode step take 5.36 ms with the adapter's beside the base's, and 5.42 ms
in turn, at 128 tokens; 7.94 and 6.95 ms at 256 (benchmarks/results/gpu-2026-11-28-few-tokens.json)."""


@cache
def linear_classes() -> tuple[type, ...]:
    """Return a class for each kind of linear layer of vLLM, which must have been set up."""
    column: Any = AdapterLayers.ColumnParallelLinearWithLoRA
    merged_column: Any = AdapterLayers.MergedColumnParallelLinearWithLoRA
    qkv: Any = AdapterLayers.QKVParallelLinearWithLoRA
    merged_qkv: Any = AdapterLayers.MergedQKVParallelLinearWithLoRA
    row: Any = AdapterLayers.RowParallelLinearWithLoRA
    replicated: Any = AdapterLayers.ReplicatedLinearWithLoRA

    class OneAdapterColumn(_OneAdapter, column):
        pass

    class OneAdapterMergedColumn(_OneAdapter, merged_column):
        pass

    class OneAdapterQKV(_OneAdapter, qkv):
        pass

    class OneAdapterMergedQKV(_OneAdapter, merged_qkv):
        def create_lora_weights(self, max_loras: int, lora_config: Any, model_config: Any) -> None:
            super().create_lora_weights(max_loras, lora_config, model_config)
            self.alike = values_are_keys(model_config.get_text_config(), self.base_layer.prefix)

        def set_lora(self, index: int, lora_a: list[torch.Tensor], lora_b: list[torch.Tensor]) -> None:
            """Give values the adapter of keys where a model has one layer for both, and vLLM two."""
            a, b = ([*parts[:2], parts[1]] if self.alike else parts for parts in (lora_a, lora_b))
            super().set_lora(index, a, b)

    class OneAdapterRow(_OneAdapter, row):
        pass

    class OneAdapterReplicated(_OneAdapter, replicated):
        pass

    class OneAdapterWhole(_OneAdapter, column):
        """A layer of which vLLM reads three or more outputs apart. Its own class has the layer's A for each of them."""

        @classmethod
        def can_replace_layer(cls, **arguments: Any) -> bool:
            outputs = getattr(arguments["source_layer"], "output_sizes", ())
            return _serves(arguments) and len(arguments["packed_modules_list"]) == 1 and len(outputs) >= 3

        def slice_lora_b(self, lora_b: torch.Tensor) -> torch.Tensor:
            """Return B as it is: models with such layers are not split over ranks."""
            return lora_b

    of_parts = OneAdapterMergedColumn, OneAdapterQKV, OneAdapterMergedQKV
    return OneAdapterColumn, *of_parts, OneAdapterRow, OneAdapterReplicated, OneAdapterWhole


def _serves(arguments: dict[str, Any]) -> bool:
    """Return whether a layer has a weight that these layers read, and the engine one adapter."""
    method = getattr(arguments["source_layer"], "quant_method", None)
    plain = isinstance(method, (AdapterLayers.UnquantizedLinearMethod, quantized_method()))
    return plain and arguments["lora_config"].max_loras == 1


class _OneAdapter:
    """The methods that replace vLLM's. With tensor parallelism A and B are this rank's shards, as vLLM cuts them."""

    base_layer: Any
    lora_a_stacked: tuple[torch.Tensor, ...]
    lora_b_stacked: tuple[torch.Tensor, ...]
    arrived: torch.Tensor
    _get_quant_method: Any

    @classmethod
    def can_replace_layer(cls, **arguments: Any) -> bool:
        return _serves(arguments) and super().can_replace_layer(**arguments)  # type: ignore[misc]

    def create_lora_weights(self, *arguments: Any, **options: Any) -> None:
        """Make A [slices * rank, in] and B [out, slices * rank], all zero, with views of them as vLLM's tensors."""
        super().create_lora_weights(*arguments, **options)  # type: ignore[misc]
        # vLLM's tensors are [adapters, 1, rank, in] and [adapters, 1, out, rank] per slice, with one adapter.
        slices_a, slices_b = [a[0, 0] for a in self.lora_a_stacked], [b[0, 0] for b in self.lora_b_stacked]
        self.adapter_a, self.adapter_b = torch.cat(slices_a), torch.block_diag(*slices_b)
        rows = self.adapter_b.split([b.shape[0] for b in slices_b])
        blocks = [row.split([b.shape[1] for b in slices_b], dim=1)[index] for index, row in enumerate(rows)]
        self.lora_a_stacked = tuple(a[None, None] for a in self.adapter_a.split([a.shape[0] for a in slices_a]))
        self.lora_b_stacked = tuple(block[None, None] for block in blocks)
        if self.adapter_a.is_cuda:
            self.arrived = _kernel().arrivals(self.adapter_a, self.adapter_b)

    def apply(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return y [tokens, out] for x [tokens, in]. Models of Transformers' own have a batch of one around both."""
        if x.dim() > 2:
            return self.apply(x.flatten(0, -2), bias).unflatten(0, x.shape[:-1])
        if x.is_cuda:
            return adapted_linear(
                x, weight_of(self.base_layer, x.dtype), bias, self.adapter_a, self.adapter_b, self.arrived
            )
        # vLLM's CPU layers keep their weight packed, where only their own method reads it.
        output: torch.Tensor = self._get_quant_method().apply(self.base_layer, x, bias)
        return add_adapter(output, x, self.adapter_a, self.adapter_b)


def add_adapter(output: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return output + (x Aᵀ) Bᵀ, [tokens, out], on a CPU, with the same rounding for any number of threads."""
    missing = max(0, FEWEST_ROWS - len(x))
    rows, sums = (pad(tensor, (0, 0, 0, missing)) if missing else tensor for tensor in (x, output))
    return sums.addmm_(linear(rows, a), b.t())[: len(x)]


def adapted_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    arrived: torch.Tensor,
) -> torch.Tensor:
    """Return x Wᵀ + c + (x Aᵀ) Bᵀ [tokens, out]. `arrived` are the layer's counters for the kernel of few tokens.

    For many tokens, the adapter's product comes first. The large product then adds to it where it would otherwise only
    write its result, which costs nothing. In the other order, the adapter's product would read and write the whole
    result once more.

    For fewer tokens, the large product takes the time of reading W, however many there are, and the adapter's small
    products take the time of starting them. So these run beside it. Its result is float32 until both are added, so
    that all ways round alike: (x Aᵀ) Bᵀ + c, and the whole.
    """
    if _kernel().fits(x, weight):
        return _kernel().adapted_product(x, weight, bias, a, b, arrived)
    if x.shape[0] > FEW_TOKENS or x.dtype == torch.float32:
        return linear(linear(x, a), b, bias).addmm_(x, weight.t())
    main, side = torch.cuda.current_stream(), _side_stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        adapted = linear(linear(x, a), b, bias)
    output = torch.mm(x, weight.t(), out_dtype=torch.float32)
    main.wait_stream(side)
    # The side stream waits for this before it uses the memory of `adapted` again.
    return torch.add(output, adapted, out=x.new_empty(output.shape))


@cache
def _kernel() -> ModuleType:
    from lorarl_trainer.engine.vllm.patches import linear_kernel  # needs Triton, which a CPU has no use for

    return linear_kernel


@cache
def _side_stream() -> torch.cuda.Stream:
    """Return a stream whose kernels come first in CUDA graphs too, as the engine's own do."""
    return torch.cuda.Stream(priority=-1)
