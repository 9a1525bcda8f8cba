"""Causal attention over segments of queries, each with its own keys: flash attention, or segment by segment.

Shape suffixes: T queries, K keys, A attention heads, G key-value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from lorarl_trainer.backends.kernels.dispatch import with_kernel


@dataclass(frozen=True)
class Extents:
    """Where each segment's queries and keys end, from 0 on, [segments + 1], int32; and the longest of them."""

    query_ends: torch.Tensor
    key_ends: torch.Tensor
    longest_query: int
    longest_key: int


def _attend_flash(
    query_T_A_D: torch.Tensor, key_K_G_D: torch.Tensor, value_K_G_D: torch.Tensor, extents: Extents, scale: float
) -> torch.Tensor:
    """See `attend`. Flash attention takes no float32."""
    if query_T_A_D.dtype == torch.float32:
        return _attend_by_segment(query_T_A_D, key_K_G_D, value_K_G_D, extents, scale)
    result = torch.ops.aten._flash_attention_forward(
        query_T_A_D,
        key_K_G_D,
        value_K_G_D,
        extents.query_ends,
        extents.key_ends,
        extents.longest_query,
        extents.longest_key,
        0.0,
        True,
        False,
        scale=scale,
    )
    output: torch.Tensor = result[0]
    return output


def _attend_by_segment(
    query_T_A_D: torch.Tensor, key_K_G_D: torch.Tensor, value_K_G_D: torch.Tensor, extents: Extents, scale: float
) -> torch.Tensor:
    """See `attend`."""
    ends = zip(extents.query_ends.tolist(), extents.key_ends.tolist(), strict=True)
    outputs, (query_start, key_start) = [], next(ends)
    for query_end, key_end in ends:
        queries, keys = slice(query_start, query_end), slice(key_start, key_end)
        q, k, v = (t.transpose(0, 1) for t in (query_T_A_D[queries], key_K_G_D[keys], value_K_G_D[keys]))
        visible = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril_(k.shape[1] - q.shape[1])
        outputs.append(scaled_dot_product_attention(q, k, v, visible, scale=scale, enable_gqa=True).transpose(0, 1))
        query_start, key_start = query_end, key_end
    return torch.cat(outputs)


@with_kernel(lambda: _attend_flash)
def attend(
    query_T_A_D: torch.Tensor, key_K_G_D: torch.Tensor, value_K_G_D: torch.Tensor, extents: Extents, scale: float
) -> torch.Tensor:
    """Return attention's output, [T, A, D]; query i of a segment's L sees all its keys but the last L - 1 - i."""
    return _attend_by_segment(query_T_A_D, key_K_G_D, value_K_G_D, extents, scale)
