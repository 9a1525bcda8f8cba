"""The Mamba layers of a model on a CPU, in fp32: vLLM's own kernels are for GPUs.

They compute with the trainer's scan, one sequence after another, and those that decode together. The state of each is
in vLLM's cache.

Shape suffixes: T tokens of a step, N a sequence's tokens, C channels of the convolution, W the width of its kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import conv1d, silu

from lorarl_trainer.engine.vllm import model_slices
from lorarl_trainer.engine.vllm.binding import Place
from lorarl_trainer.engine.vllm.names import CpuStateSpaces
from lorarl_trainer.engine.vllm.patches.replaced import replaced
from lorarl_trainer.kernels.state_space import scan, step_sizes


@contextmanager
def cpu_state_spaces() -> Iterator[None]:
    """Let an engine that starts within the block on a CPU compute its Mamba layers."""
    registered = CpuStateSpaces.other_layers
    own = {**vars(registered.owner)[registered.name], CpuStateSpaces.MambaMixer2.__name__: _mixer_class()}
    # With AMX, vLLM packs the convolution's kernel for its own code.
    packing = Place(torch.cpu, "_is_amx_tile_supported")
    with replaced(registered, own), replaced(packing, lambda: False):
        yield


@cache
def _mixer_class() -> type:
    """Return the class. It is made here because its base class is vLLM's, which must have been set up."""
    base: Any = CpuStateSpaces.MambaMixer2

    class InTorch(base):
        """vLLM's own layer."""

        def conv_ssm_forward(self, projected_states: torch.Tensor, output: torch.Tensor) -> None:
            _write(self, projected_states, output)

    return InTorch


def _write(layer: model_slices.MambaMixer, projected_states: torch.Tensor, output: torch.Tensor) -> None:
    """Write what tokens read of their states, [T, heads * values of one]. vLLM calls it between its projections."""
    _, inputs_T_C, steps_T = projected_states.split([layer.intermediate_size, layer.conv_dim, layer.num_heads], dim=-1)
    output.zero_()
    step: model_slices.ForwardContext = CpuStateSpaces.get_forward_context()
    if step.attn_metadata is not None:
        for tokens, slots, begun in _sequences(step.attn_metadata[layer.prefix]):
            inputs, steps = (tensor[tokens].unflatten(0, (len(slots), -1)) for tensor in (inputs_T_C, steps_T))
            output[tokens] = _outputs(layer, inputs, steps, slots, begun=begun).flatten(0, 1)


def _sequences(own: model_slices.MambaMetadata) -> Iterator[tuple[slice, torch.Tensor, bool]]:
    """Yield the tokens of a step, sequence by sequence, with their place in the cache and whether it has their state.

    Those that decode come first in vLLM's order, and are yielded together.
    """
    if own.num_decodes:
        yield slice(0, own.num_decodes), own.state_indices_tensor_d.flatten().long(), True
    if own.num_prefills:
        slots, begun = own.state_indices_tensor_p.long(), own.has_initial_states_p.tolist()
        for row, (start, end) in enumerate(pairwise((own.query_start_loc_p + own.num_decodes).tolist())):
            yield slice(start, end), slots[row : row + 1], begun[row]


def _outputs(
    layer: model_slices.MambaMixer, inputs: torch.Tensor, steps: torch.Tensor, slots: torch.Tensor, *, begun: bool
) -> torch.Tensor:
    """Return what sequences of N tokens each read, [sequences, N, heads * values of one], and keep their states.

    Args:
        layer: vLLM's.
        inputs: of the convolution, [sequences, N, C].
        steps: how long a step each token is, before its bias, [sequences, N, heads].
        slots: where the cache has the sequences' states.
        begun: whether it has them already.
    """
    weight_C_1_W, kept = layer.conv1d.weight, layer.conv_kernel_size - 1
    last, states = layer.kv_cache
    last = last if last.shape[-1] == layer.conv_dim else last.transpose(1, 2)  # [slots, W - 1, C]
    before = last[slots] if begun else inputs.new_zeros(len(slots), kept, layer.conv_dim)
    seen = torch.cat([before, inputs], dim=1)
    last[slots] = seen[:, -kept:]
    mixed = silu(conv1d(seen.transpose(1, 2), weight_C_1_W, layer.conv1d.bias, groups=layer.conv_dim)).transpose(1, 2)
    of_group = (layer.conv_dim - layer.intermediate_size) // 2
    values, writes, reads = mixed.split([layer.intermediate_size, of_group, of_group], dim=-1)
    output, state = scan(
        values.unflatten(-1, (layer.num_heads, -1)),
        step_sizes(steps, layer.dt_bias),
        layer.A,
        writes.unflatten(-1, (layer.n_groups, -1)),
        reads.unflatten(-1, (layer.n_groups, -1)),
        layer.D,
        states[slots] if begun else None,
    )
    states[slots] = state.to(states.dtype)
    return output.flatten(2).to(inputs.dtype)
