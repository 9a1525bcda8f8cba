"""The linear layers that vLLM generates with: one adapter for every token, as three plain matrix products.

vLLM's own layers serve many adapters at a time: its kernels look up each token's adapter, split the batch by adapter, and go
through a float32 buffer. A rollout has exactly one adapter, so here a layer with base weight W and bias c computes

    y = x Wᵀ + c + (x Aᵀ) Bᵀ

where the layers that vLLM fuses (q, k and v; gate and up) have one A, their A's one above the other, and one B, theirs along its
diagonal. B holds the adapter's scaling, as vLLM's buffers do. `lora_a_stacked` and `lora_b_stacked`, by which adapters are loaded,
are views of that A and B, so whoever writes there writes here. An adapter that is not there is zero: the layers need not know.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import linear

from lorarl_trainer.engine.vllm.patches.start import replaced


@contextlib.contextmanager
def one_adapter_layers() -> Iterator[None]:
    """Let vLLM build its model with these layers until the block ends, where it would take its own."""
    from vllm.lora import utils
    from vllm.platforms import current_platform

    with contextlib.ExitStack() as stack:
        # The first class that fits a layer is taken.
        stack.enter_context(replaced(utils, "_all_lora_classes", (*_layer_classes(), *utils._all_lora_classes)))
        if current_platform.is_cuda():
            from vllm.v1.worker.gpu import model_runner

            # Every request has the adapter, so there is no need for CUDA graphs of batches without one.
            stack.enter_context(replaced(model_runner, "get_lora_capture_cases", lambda lora, _: [lora.max_loras + 1]))
        yield


def skip_adapter_lookup(worker: Any) -> None:
    """Run in the vLLM worker: no longer work out each token's adapter before a step, where every layer is one of these."""
    manager = worker.model_runner.lora_manager._adapter_manager
    if all(isinstance(module, _layer_classes()) for module in manager.modules.values()):
        manager._set_adapter_mapping = _ignore
        if state := getattr(worker.model_runner, "lora_state", None):  # of the V2 runner
            state.get_activate_loras = functools.partial(_adapter_in_use, state)
            state.make_lora_inputs = lambda names, *_: ((), (), state.get_activate_loras(names))


def _ignore(mapping: Any) -> None:
    pass


def _adapter_in_use(state: Any, names: list[str]) -> set[Any]:
    """Return the adapter that all requests of a step have, as a set of one, or of none."""
    return {adapter} if (adapter := state.lora_requests.get(names[0])) else set()


@functools.cache
def _layer_classes() -> tuple[type, ...]:
    """Return a class for each kind of linear layer that vLLM has. vLLM is imported here, when it has been set up."""
    from vllm.lora.layers import (
        ColumnParallelLinearWithLoRA,
        MergedColumnParallelLinearWithLoRA,
        MergedQKVParallelLinearWithLoRA,
        QKVParallelLinearWithLoRA,
        RowParallelLinearWithLoRA,
    )

    class OneAdapterColumn(_OneAdapter, ColumnParallelLinearWithLoRA):
        pass

    class OneAdapterMergedColumn(_OneAdapter, MergedColumnParallelLinearWithLoRA):
        pass

    class OneAdapterQKV(_OneAdapter, QKVParallelLinearWithLoRA):
        pass

    class OneAdapterMergedQKV(_OneAdapter, MergedQKVParallelLinearWithLoRA):
        pass

    class OneAdapterRow(_OneAdapter, RowParallelLinearWithLoRA):
        pass

    return OneAdapterColumn, OneAdapterMergedColumn, OneAdapterQKV, OneAdapterMergedQKV, OneAdapterRow


class _OneAdapter:
    """What those classes have in place of vLLM's own. Under tensor parallelism A and B are this rank's shards, as vLLM cuts them."""

    base_layer: Any
    lora_a_stacked: tuple[torch.Tensor, ...]
    lora_b_stacked: tuple[torch.Tensor, ...]
    _get_quant_method: Any

    @classmethod
    def can_replace_layer(cls, **arguments: Any) -> bool:
        from vllm.model_executor.layers.linear import UnquantizedLinearMethod

        plain = isinstance(getattr(arguments["source_layer"], "quant_method", None), UnquantizedLinearMethod)
        return plain and arguments["lora_config"].max_loras == 1 and super().can_replace_layer(**arguments)  # type: ignore[misc]

    def create_lora_weights(self, *arguments: Any, **options: Any) -> None:
        """Make A [slices * rank, in] and B [out, slices * rank], all zero, and the views of them that take the place of vLLM's tensors."""
        super().create_lora_weights(*arguments, **options)  # type: ignore[misc]
        # vLLM's are [adapters, 1, rank, in] and [adapters, 1, out, rank] a slice, with one adapter.
        parts_a, parts_b = [a[0, 0] for a in self.lora_a_stacked], [b[0, 0] for b in self.lora_b_stacked]
        self.adapter_a, self.adapter_b = torch.cat(parts_a), torch.block_diag(*parts_b)
        rows = self.adapter_b.split([b.shape[0] for b in parts_b])
        blocks = [row.split([b.shape[1] for b in parts_b], dim=1)[index] for index, row in enumerate(rows)]
        self.lora_a_stacked = tuple(a[None, None] for a in self.adapter_a.split([a.shape[0] for a in parts_a]))
        self.lora_b_stacked = tuple(block[None, None] for block in blocks)

    def apply(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return y [tokens, out] for x [tokens, in]."""
        if x.is_cuda:
            return adapted_linear(x, self.base_layer.weight, bias, self.adapter_a, self.adapter_b)
        # vLLM's CPU layers keep their weight packed, out of sight.
        output: torch.Tensor = self._get_quant_method().apply(self.base_layer, x, bias)
        return output.addmm_(linear(x, self.adapter_a), self.adapter_b.t())


def adapted_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """Return x Wᵀ + c + (x Aᵀ) Bᵀ [tokens, out].

    The adapter's share comes first: the large product then takes it up where it would otherwise only write its result, and that
    costs nothing. The other way round, the adapter's product would read and write all of the result once more.
    """
    output = linear(linear(x, a), b, bias)
    return output.addmm_(x, weight.t())
