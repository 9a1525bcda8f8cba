"""Causal attention over segments of queries, each with its own keys: flash attention on a GPU, or batch by batch.

Shape suffixes: T queries, K keys, A attention heads, G key-value heads, R = A / G, D head size. In a batch: S segments
of L queries and M keys, padded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from lorarl_trainer.backends.kernels.dispatch import with_kernel
from lorarl_trainer.backends.kernels.gather import Gather

_LENGTHS_MULTIPLE = 16
"""Segments whose lengths are equal when rounded up to this share a batch."""


@dataclass(frozen=True)
class Extents:
    """Where each segment's queries and keys end, from 0 on, [segments + 1], int32; and the longest of them."""

    query_ends: torch.Tensor
    key_ends: torch.Tensor
    longest_query: int
    longest_key: int

    @cached_property
    def batches(self) -> Batches:
        """The segments in batches of similar length. All layers use the same."""
        return Batches(self)


class Batches:
    """Segments in batches, for attention that takes only whole rectangles.

    A call has a price, and packings of short samples have many segments.

    Attributes:
        each: the batches.
        results: takes the output of every query out of the outputs of the batches, one after another.
    """

    def __init__(self, extents: Extents) -> None:
        device = extents.query_ends.device
        query_ends, key_ends = extents.query_ends.cpu().numpy(), extents.key_ends.cpu().numpy()
        queries, keys = np.diff(query_ends), np.diff(key_ends)
        rounded = [-(-lengths // _LENGTHS_MULTIPLE) * _LENGTHS_MULTIPLE for lengths in (queries, keys)]
        self.each: list[Batch] = []
        places, before = np.empty(query_ends[-1], np.int64), 0
        for length, key_length in sorted(set(zip(*(sizes.tolist() for sizes in rounded), strict=True))):
            chosen = np.flatnonzero((rounded[0] == length) & (rounded[1] == key_length))
            rows, is_query = _rows(query_ends[chosen], queries[chosen], length)
            key_rows, is_key = _rows(key_ends[chosen], keys[chosen], key_length)
            offsets = (keys - queries)[chosen, None, None]
            seen = is_key[:, None, :] & (np.arange(key_length) <= np.arange(length)[:, None] + offsets)
            self.each.append(
                Batch(
                    queries=Gather(rows.ravel(), query_ends[-1], device),
                    keys=Gather(key_rows.ravel(), key_ends[-1], device),
                    mask=torch.from_numpy(np.where(seen, np.float32(0), np.float32(-np.inf))).to(device),
                )
            )
            places[rows[is_query]] = before + np.flatnonzero(is_query)
            before += rows.size
        self.results = Gather(places, before, device)


@dataclass(frozen=True)
class Batch:
    """Segments of about the same length.

    Attributes:
        queries, keys: take their rows, [S * L] and [S * M]; padding takes the first row.
        mask: 0 where a query sees a key, otherwise minus infinity, [S, L, M]. A padded query sees all keys.
    """

    queries: Gather
    keys: Gather
    mask: torch.Tensor


def _rows(starts: np.ndarray, lengths: np.ndarray, padded: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of some segments, padded with 0, and which of them are no padding, [S, padded] each."""
    real = np.arange(padded) < lengths[:, None]
    return np.where(real, starts[:, None] + np.arange(padded), 0), real


def _attend_flash(
    query_T_A_D: torch.Tensor, key_K_G_D: torch.Tensor, value_K_G_D: torch.Tensor, extents: Extents, scale: float
) -> torch.Tensor:
    """See `attend`. Flash attention takes no float32."""
    if query_T_A_D.dtype == torch.float32:
        return _attend_in_batches(query_T_A_D, key_K_G_D, value_K_G_D, extents, scale)
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


def _attend_in_batches(
    query_T_A_D: torch.Tensor, key_K_G_D: torch.Tensor, value_K_G_D: torch.Tensor, extents: Extents, scale: float
) -> torch.Tensor:
    """See `attend`."""
    outputs = torch.cat(list(_batch_outputs(query_T_A_D, key_K_G_D, value_K_G_D, extents.batches, scale)))
    return extents.batches.results(outputs)


def _batch_outputs(
    query_T_A_D: torch.Tensor, key_K_G_D: torch.Tensor, value_K_G_D: torch.Tensor, batches: Batches, scale: float
) -> Iterator[torch.Tensor]:
    """Yield the output of each batch, [S * L, A, D].

    The queries of all heads that share keys are rows of one product: torch's flash attention for CPUs takes no fewer
    heads of keys than of queries.
    """
    (_, heads, size), groups = query_T_A_D.shape, key_K_G_D.shape[1]
    for batch in batches.each:
        segments, length, _ = batch.mask.shape
        q = batch.queries(query_T_A_D).view(segments, length, groups, -1, size).permute(0, 2, 3, 1, 4).flatten(2, 3)
        k, v = (batch.keys(t).view(segments, -1, groups, size).transpose(1, 2) for t in (key_K_G_D, value_K_G_D))
        mask = batch.mask.repeat(1, heads // groups, 1)[:, None]
        output = scaled_dot_product_attention(q, k, v, mask.to(q.dtype), scale=scale)
        yield output.view(segments, groups, -1, length, size).permute(0, 3, 1, 2, 4).reshape(-1, heads, size)


@with_kernel(lambda: _attend_flash)
def attend(
    query_T_A_D: torch.Tensor, key_K_G_D: torch.Tensor, value_K_G_D: torch.Tensor, extents: Extents, scale: float
) -> torch.Tensor:
    """Return attention's output, [T, A, D]; query i of a segment's L sees all its keys but the last L - 1 - i."""
    return _attend_in_batches(query_T_A_D, key_K_G_D, value_K_G_D, extents, scale)
