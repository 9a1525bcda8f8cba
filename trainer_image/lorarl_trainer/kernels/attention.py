"""Causal attention over segments of queries, each with its own keys: flash attention on a GPU, or batch by batch.

Functions on tensors that autograd does not see: who calls `attend` decides what is kept for `attend_backward`.
Shape suffixes: T queries, K keys, A attention heads, G key-value heads, D head size.
"""

from __future__ import annotations

from functools import cache

import torch
from torch.nn.functional import scaled_dot_product_attention

from lorarl_trainer.devices.imports import import_without_compiler
from lorarl_trainer.kernels.dispatch import with_kernel
from lorarl_trainer.kernels.segments import Extents

Statistics = tuple[torch.Tensor, ...]
"""Of each query and head, the logarithm of the sum of exp(score): in [A, T], or in a batch's shape for each batch."""
_WIDEST = 256
"""Heads that flash attention takes. Gemma 4 has some of 512."""
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""By queries, keys and values."""


def _attend_flash(
    query_T_A_D: torch.Tensor, key_K_G_D: torch.Tensor, value_K_G_D: torch.Tensor, extents: Extents, scale: float
) -> tuple[torch.Tensor, Statistics]:
    """See `attend`. Flash attention takes no float32."""
    inputs = (query_T_A_D, key_K_G_D, value_K_G_D)
    if _is_not_for_flash(query_T_A_D):
        return _attend_in_batches(*inputs, extents, scale)
    if _has_flash_3():
        return _attend_flash_3(*inputs, extents, scale)
    output_T_A_D, statistics_A_T, *_ = torch.ops.aten._flash_attention_forward(
        *inputs, *_ends(extents), 0.0, True, False, scale=scale
    )
    return output_T_A_D, (statistics_A_T,)


def _is_not_for_flash(query_T_A_D: torch.Tensor) -> bool:
    return query_T_A_D.dtype == torch.float32 or query_T_A_D.shape[-1] > _WIDEST


@cache
def _has_flash_3() -> bool:
    """Return whether vLLM's build of flash attention 3 runs here: on GPUs of compute capability 9."""
    with import_without_compiler():  # a training from data alone has not imported vLLM before
        from vllm.vllm_flash_attn import is_fa_version_supported

    found: bool = is_fa_version_supported(3)
    return found


def _attend_flash_3(
    query_T_A_D: torch.Tensor, key_K_G_D: torch.Tensor, value_K_G_D: torch.Tensor, extents: Extents, scale: float
) -> tuple[torch.Tensor, Statistics]:
    """See `attend`. It takes half of torch's time, and its statistics suit torch's backward pass."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    output_T_A_D, statistics_A_T = flash_attn_varlen_func(
        *(query_T_A_D, key_K_G_D, value_K_G_D),
        max_seqlen_q=extents.longest_query,
        cu_seqlens_q=extents.query_ends,
        max_seqlen_k=extents.longest_key,
        cu_seqlens_k=extents.key_ends,
        softmax_scale=scale,
        causal=True,
        return_softmax_lse=True,
        fa_version=3,
        num_splits=1,  # splits of a query's keys are outputs in float32 that no plan contains
    )
    return output_T_A_D, (statistics_A_T,)


def _attend_flash_backward(
    by_output_T_A_D: torch.Tensor,
    query_T_A_D: torch.Tensor,
    key_K_G_D: torch.Tensor,
    value_K_G_D: torch.Tensor,
    output_T_A_D: torch.Tensor,
    statistics: Statistics,
    extents: Extents,
    scale: float,
) -> Gradients:
    tensors = (by_output_T_A_D, query_T_A_D, key_K_G_D, value_K_G_D, output_T_A_D)
    if _is_not_for_flash(query_T_A_D):
        return _attend_in_batches_backward(*tensors, statistics, extents, scale)
    # Of dropout, which there is none of (as in torch.nn.attention.varlen).
    random_state, unused = query_T_A_D.new_zeros(2, dtype=torch.uint64), query_T_A_D.new_empty(0)
    gradients: Gradients = torch.ops.aten._flash_attention_backward(
        *tensors, *statistics, *_ends(extents), 0.0, True, random_state, unused, scale=scale
    )
    return gradients


def _ends(extents: Extents) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    return extents.query_ends, extents.key_ends, extents.longest_query, extents.longest_key


def _attend_in_batches(
    query_T_A_D: torch.Tensor, key_K_G_D: torch.Tensor, value_K_G_D: torch.Tensor, extents: Extents, scale: float
) -> tuple[torch.Tensor, Statistics]:
    outputs, statistics = [], []
    for batch in extents.batches.each:
        output, of_batch = _attend_batch(*batch.inputs(query_T_A_D, key_K_G_D, value_K_G_D), scale)
        outputs.append(batch.ungrouped(output, query_T_A_D.shape[1]))
        statistics.append(of_batch)
    return torch.cat(outputs).index_select(0, extents.batches.query_places), tuple(statistics)


def _attend_in_batches_backward(
    by_output_T_A_D: torch.Tensor,
    query_T_A_D: torch.Tensor,
    key_K_G_D: torch.Tensor,
    value_K_G_D: torch.Tensor,
    output_T_A_D: torch.Tensor,
    statistics: Statistics,
    extents: Extents,
    scale: float,
) -> Gradients:
    batches, (heads, groups) = extents.batches, (query_T_A_D.shape[1], key_K_G_D.shape[1])
    sizes = [len(batch.queries) for batch in batches.each]
    # A padded query's output is never read.
    by_outputs = by_output_T_A_D.new_zeros(sum(sizes), *by_output_T_A_D.shape[1:])
    by_outputs.index_copy_(0, batches.query_places, by_output_T_A_D)
    by_queries, by_keys, by_values = [], [], []
    for batch, by_output, of_batch in zip(batches.each, by_outputs.split(sizes), statistics, strict=True):
        by_query, by_key, by_value = _attend_batch_backward(
            batch.grouped(by_output, groups),
            *batch.inputs(query_T_A_D, key_K_G_D, value_K_G_D),
            batch.grouped(output_T_A_D.index_select(0, batch.queries), groups),
            of_batch,
            scale,
        )
        by_queries.append(batch.ungrouped(by_query, heads))
        by_keys.append(by_key.transpose(1, 2).flatten(0, 1))
        by_values.append(by_value.transpose(1, 2).flatten(0, 1))
    return (
        torch.cat(by_queries).index_select(0, batches.query_places),
        torch.cat(by_keys).index_select(0, batches.key_places),
        torch.cat(by_values).index_select(0, batches.key_places),
    )


def _attend_batch_on_gpu(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `_attend_batch`. torch chooses the kernel, and the backward pass starts with the forward pass again."""
    return scaled_dot_product_attention(query, key, value, mask, scale=scale), query.new_empty(0)


def _attend_batch_backward_on_gpu(
    by_output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    output: torch.Tensor,
    statistics: torch.Tensor,
    scale: float,
) -> Gradients:
    del output, statistics
    query, key, value = (tensor.detach().requires_grad_() for tensor in (query, key, value))
    with torch.enable_grad():
        again = scaled_dot_product_attention(query, key, value, mask, scale=scale)
    by_query, by_key, by_value = torch.autograd.grad(again, (query, key, value), by_output)
    return by_query, by_key, by_value


@with_kernel(lambda: _attend_batch_on_gpu)
def _attend_batch(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output for `Batch.inputs`, in the queries' shape, and its statistics."""
    result: tuple[torch.Tensor, torch.Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, attn_mask=mask, scale=scale
    )
    return result


@with_kernel(lambda: _attend_batch_backward_on_gpu)
def _attend_batch_backward(
    by_output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    output: torch.Tensor,
    statistics: torch.Tensor,
    scale: float,
) -> Gradients:
    """Return the gradients, given the one by `_attend_batch`'s output."""
    gradients: Gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        by_output, query, key, value, output, statistics, 0.0, False, attn_mask=mask, scale=scale
    )
    return gradients


@with_kernel(lambda: _attend_flash)
def attend(
    query_T_A_D: torch.Tensor, key_K_G_D: torch.Tensor, value_K_G_D: torch.Tensor, extents: Extents, scale: float
) -> tuple[torch.Tensor, Statistics]:
    """Return attention's output, [T, A, D], and its statistics.

    Query i of a segment's L sees all its keys but the last L - 1 - i.
    """
    return _attend_in_batches(query_T_A_D, key_K_G_D, value_K_G_D, extents, scale)


@with_kernel(lambda: _attend_flash_backward)
def attend_backward(
    by_output_T_A_D: torch.Tensor,
    query_T_A_D: torch.Tensor,
    key_K_G_D: torch.Tensor,
    value_K_G_D: torch.Tensor,
    output_T_A_D: torch.Tensor,
    statistics: Statistics,
    extents: Extents,
    scale: float,
) -> Gradients:
    """Return the gradients, given the one by `attend`'s output."""
    tensors = (by_output_T_A_D, query_T_A_D, key_K_G_D, value_K_G_D, output_T_A_D)
    return _attend_in_batches_backward(*tensors, statistics, extents, scale)
