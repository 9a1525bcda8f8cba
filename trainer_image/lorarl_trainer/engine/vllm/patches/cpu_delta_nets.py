"""The gated delta nets of a model on a CPU, in fp32: vLLM's own take bf16 alone.

They compute what Transformers computes, by its own functions, one sequence after another, and those that decode
together. The state of each is in vLLM's cache.

Shape suffixes: T tokens of a step, N a sequence's tokens, C channels of the convolution, W the width of its kernel, E
heads of values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import conv1d, silu, softplus

from lorarl_trainer.engine.vllm import model_slices
from lorarl_trainer.engine.vllm.binding import Place
from lorarl_trainer.engine.vllm.names import CpuDeltaNets
from lorarl_trainer.engine.vllm.patches.replaced import replaced


@contextmanager
def cpu_delta_nets() -> Iterator[None]:
    """Let an engine that starts within the block on a CPU compute its gated delta nets in the model's precision."""
    with ExitStack() as stack:
        stack.enter_context(replaced(CpuDeltaNets.forward_cpu, _forward))
        # With AMX, vLLM packs the convolution's kernel for its own code.
        stack.enter_context(replaced(Place(torch.cpu, "_is_amx_tile_supported"), lambda: False))
        yield


def _forward(layer: model_slices.DeltaNet, hidden_states: torch.Tensor) -> torch.Tensor:
    """Return the layer's output, [T, hidden], in the place of `QwenGatedDeltaNetAttention.forward_cpu`."""
    inputs_T, gate_T = layer.in_proj_qkvz(hidden_states)[0].split([layer.conv_dim, layer.value_dim], dim=-1)
    write_T_E, decay_T_E = layer.in_proj_ba(hidden_states)[0].chunk(2, dim=-1)
    output_T = hidden_states.new_zeros(len(hidden_states), layer.num_v_heads, layer.head_v_dim)
    step: model_slices.ForwardContext = CpuDeltaNets.get_forward_context()
    if (metadata := step.attn_metadata) is not None:
        for tokens, slots, begun in _sequences(metadata, layer.prefix):
            shape = (len(slots), -1)
            output_T[tokens] = _outputs(
                layer,
                inputs_T[tokens].unflatten(0, shape),
                write_T_E[tokens].unflatten(0, shape),
                decay_T_E[tokens].unflatten(0, shape),
                slots,
                begun=begun,
            ).flatten(0, 1)
    output: torch.Tensor = layer._output_projection(output_T, gate_T.unflatten(-1, (-1, layer.head_v_dim)))
    return output


def _sequences(metadata: Mapping[str, Any], prefix: str) -> Iterator[tuple[slice, torch.Tensor, bool]]:
    """Yield the tokens of a step, sequence by sequence, with their place in the cache and whether it has their state.

    Those that decode come first in vLLM's order, and are yielded together.
    """
    own: model_slices.DeltaNetMetadata = metadata[prefix]
    # That of a layer with attention knows the lengths: a prompt of one token looks like a token that decodes.
    lengths = next(one.seq_lens for one in metadata.values() if hasattr(one, "seq_lens")).tolist()
    ends, slots = own.non_spec_query_start_loc.tolist(), own.non_spec_state_indices_tensor.long()
    sizes = [end - start for start, end in pairwise(ends)]
    known = [length - size for length, size in zip(lengths, sizes, strict=True)]
    decoding = next((row for row, size in enumerate(sizes) if size != 1 or not known[row]), len(sizes))
    if decoding:
        yield slice(0, decoding), slots[:decoding], True
    for row in range(decoding, len(sizes)):
        if sizes[row]:
            yield slice(ends[row], ends[row + 1]), slots[row : row + 1], known[row] > 0


def _outputs(
    layer: model_slices.DeltaNet,
    inputs: torch.Tensor,
    write: torch.Tensor,
    decay: torch.Tensor,
    slots: torch.Tensor,
    *,
    begun: bool,
) -> torch.Tensor:
    """Return the rule's output for sequences of N tokens each, [sequences, N, E, head], and keep their states.

    It is `Qwen3_5GatedDeltaNet.forward` of Transformers, between its projections.

    Args:
        layer: vLLM's.
        inputs: of the convolution, [sequences, N, C].
        write: how much of the state each token overwrites, [sequences, N, E].
        decay: how much of it each token forgets, likewise.
        slots: where the cache has the sequences' states.
        begun: whether it has them already.
    """
    from transformers.models.qwen3_5.modeling_qwen3_5 import (
        torch_chunk_gated_delta_rule,
        torch_recurrent_gated_delta_rule,
    )

    weight_C_1_W = layer.conv1d.weight
    last, states = layer.kv_cache
    last = last if last.shape[-1] == layer.conv_dim else last.transpose(1, 2)  # [slots, W - 1, C]
    before = last[slots] if begun else inputs.new_zeros(len(slots), layer.conv_kernel_size - 1, layer.conv_dim)
    seen = torch.cat([before, inputs], dim=1)
    last[slots] = seen[:, 1 - layer.conv_kernel_size :]
    mixed = silu(conv1d(seen.transpose(1, 2), weight_C_1_W, groups=layer.conv_dim)).transpose(1, 2)
    query, key, value = mixed.split([layer.key_dim, layer.key_dim, layer.value_dim], dim=-1)
    query, key = (one.unflatten(-1, (layer.num_k_heads, layer.head_k_dim)) for one in (query, key))
    shared = layer.num_v_heads // layer.num_k_heads
    rule = torch_recurrent_gated_delta_rule if begun and inputs.shape[1] == 1 else torch_chunk_gated_delta_rule
    output, state = rule(
        query.repeat_interleave(shared, dim=2),
        key.repeat_interleave(shared, dim=2),
        value.unflatten(-1, (layer.num_v_heads, layer.head_v_dim)),
        g=-layer.A_log.float().exp() * softplus(decay.float() + layer.dt_bias),
        beta=write.sigmoid(),
        initial_state=states[slots].transpose(2, 3) if begun else None,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    states[slots] = state.transpose(2, 3).to(states.dtype)  # vLLM keeps [values, keys] of each head
    made: torch.Tensor = output
    return made
