"""Attention of Transformers' models over packed sequences with shared prompts: see `samples.packing.Packing`.

To such a model a packing is one sequence of T tokens whose positions are given. Its attention modules call a function
that Transformers knows by name, and that finds the packing of the micro-batch in one `Current`.

Shape suffixes: T tokens of the packing, A attention heads, G key-value heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from lorarl_trainer.kernels.packed import Segments, attend_segments
from lorarl_trainer.kernels.segments import Batch

PACKED = "lorarl-packed"
"""The name by which Transformers finds the function."""
_MORE = 8
"""Dimensions that are added to heads for a sink: kernels of GPUs want multiples of this."""
_CURRENT = "packing_of_the_micro_batch"
"""The attribute of every module that holds the model's `Current`."""


class Current:
    """The micro-batch whose forward or backward pass (which may recompute the forward) is running."""

    segments: Segments | None = None
    calls = 0


def register() -> None:
    """Let Transformers know the function. A name for which no mask is registered gets none."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED, _packed_attention)


def let_find(model: torch.nn.Module) -> Current:
    """Return where to put the current packing, and let all modules of the model find it."""
    current = Current()
    for module in model.modules():
        setattr(module, _CURRENT, current)
    return current


def _packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return the output, [1, T, A, D], from query [1, A, T, D], key and value [1, G, T, D]; see Transformers' own."""
    current: Current = getattr(module, _CURRENT)
    current.calls += 1
    segments = current.segments
    assert segments is not None, "set before the model is called"
    query, key, value = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    whole = sliding_window is None or sliding_window >= segments.longest_sequence
    if whole and softcap is None and s_aux is None:
        return attend_segments(query, key, value, segments, scale)[None], None
    window = None if whole else sliding_window
    return _attend_within(query, key, value, segments, scale, window, softcap, s_aux)[None], None


def _attend_within(
    query_T_A_D: torch.Tensor,
    key_T_G_D: torch.Tensor,
    value_T_G_D: torch.Tensor,
    segments: Segments,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks_A: torch.Tensor | None,
) -> torch.Tensor:
    """Return attention's output, [T, A, D], over a window of so many keys, with capped scores or sinks, in batches."""
    keys_K_G_D, values_K_G_D = segments.keys(key_T_G_D), segments.keys(value_T_G_D)
    outputs = []
    for batch in segments.extents.batches.each:
        query, key, value, mask = _within(batch, window).inputs(query_T_A_D, keys_K_G_D, values_K_G_D)
        if sinks_A is not None:
            output = _attend_with_sinks(query, key, value, mask, scale, sinks_A.view(key.shape[1], -1))
        elif soft_cap is None:
            output = scaled_dot_product_attention(query, key, value, mask, scale=scale)
        else:
            scores = (query @ key.transpose(2, 3) * scale / soft_cap).tanh() * soft_cap + mask
            output = scores.softmax(-1, dtype=torch.float32).to(query.dtype) @ value
        outputs.append(batch.ungrouped(output, query_T_A_D.shape[1]))
    return torch.cat(outputs).index_select(0, segments.extents.batches.query_places)


def _attend_with_sinks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    sinks_G_R: torch.Tensor,
) -> torch.Tensor:
    """Return attention's output for `Batch.inputs`, with a score for each head that takes part in the softmax alone.

    Such a sink is one more key, whose value is zero. Only in dimensions that are added to all heads it is not zero
    too, and there a query has its head's sink: so torch's kernels compute it, and no scores stay in memory.
    """
    rows = query.shape[2] // sinks_G_R.shape[1]
    of_rows = (sinks_G_R / scale).repeat_interleave(rows, dim=1).to(query.dtype)[None, :, :, None]
    query = torch.cat([pad(query, (0, _MORE - 1)), of_rows.expand(len(query), -1, -1, -1)], dim=-1)
    sink = key.new_zeros(*key.shape[:2], 1, key.shape[-1] + _MORE)
    sink[..., -1] = 1.0
    key = torch.cat([pad(key, (0, _MORE)), sink], dim=2)
    value, mask = pad(value, (0, _MORE, 0, 1)), pad(mask, (0, 1))
    return scaled_dot_product_attention(query, key, value, mask, scale=scale)[..., :-_MORE]


def _within(batch: Batch, window: int | None) -> Batch:
    """Return a batch whose queries see only the last so many of their keys. A segment's keys are in their order."""
    if window is None:
        return batch
    seen = batch.mask == 0
    first = seen.sum(-1, keepdim=True) - window
    visible = seen & (torch.arange(seen.shape[-1], device=seen.device) >= first)
    return Batch(batch.queries, batch.keys, torch.zeros_like(batch.mask).masked_fill_(~visible, float("-inf")))
