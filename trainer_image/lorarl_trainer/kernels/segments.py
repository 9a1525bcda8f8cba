"""Segments of queries with their own keys, as attention's kernels want them: their ends, or batches of rectangles.

Shape suffixes: T queries, K keys, A attention heads, G key-value heads, R = A / G, D head size. In a batch: S segments
of L queries and M keys, padded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from lorarl_trainer.devices.transfer import to_device
from lorarl_trainer.samples.whole_sequences import row_lengths

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

    @cached_property
    def sequences(self) -> Sequences:
        """Each segment's keys as a row, for layers that see whole sequences. All layers use the same."""
        return Sequences(self)

    def rows_before(self, rows: np.ndarray, steps: int) -> np.ndarray:
        """Return the row so many tokens before each query in its sequence, [T]; T where a sequence has none.

        `rows`: which row each key is of, [K].
        """
        query_ends, key_ends = self.query_ends.cpu().numpy(), self.key_ends.cpu().numpy()
        queries = np.diff(query_ends)
        # A segment's queries are the last of its keys.
        own = np.arange(query_ends[-1]) + np.repeat(key_ends[1:] - queries - query_ends[:-1], queries)
        position = own - np.repeat(key_ends[:-1], queries)
        return np.where(position >= steps, rows[own - steps], query_ends[-1])


class Batches:
    """Segments in batches, for attention that takes only whole rectangles.

    A call has a price, and packings of short samples have many segments.

    Attributes:
        query_places, key_places: where each query, [T], and each key, [K], is in the batches, in their order.
    """

    def __init__(self, extents: Extents) -> None:
        device = extents.query_ends.device
        query_ends, key_ends = extents.query_ends.cpu().numpy(), extents.key_ends.cpu().numpy()
        queries, keys = np.diff(query_ends), np.diff(key_ends)
        rounded = [-(-lengths // _LENGTHS_MULTIPLE) * _LENGTHS_MULTIPLE for lengths in (queries, keys)]
        query_places, key_places = _Places(query_ends[-1]), _Places(key_ends[-1])
        self.each: list[Batch] = []
        for length, key_length in sorted(set(zip(*(sizes.tolist() for sizes in rounded), strict=True))):
            chosen = np.flatnonzero((rounded[0] == length) & (rounded[1] == key_length))
            rows, is_query = _rows(query_ends[chosen], queries[chosen], length)
            key_rows, is_key = _rows(key_ends[chosen], keys[chosen], key_length)
            offsets = (keys - queries)[chosen, None, None]
            seen = is_key[:, None, :] & (np.arange(key_length) <= np.arange(length)[:, None] + offsets)
            self.each.append(
                Batch(
                    queries=to_device(rows.ravel(), device),
                    keys=to_device(key_rows.ravel(), device),
                    mask=torch.from_numpy(np.where(seen, np.float32(0), np.float32(-np.inf))).to(device),
                )
            )
            query_places.add(rows, is_query)
            key_places.add(key_rows, is_key)
        self.query_places, self.key_places = (to_device(p.places, device) for p in (query_places, key_places))


class Sequences:
    """Whole sequences as rows, in batches of similar length, padded at the end.

    A prompt's tokens are the first of each of its completions, so it has no row for itself.

    Attributes:
        each: the batches.
        places: where each query is in the batches, in their order, [T].
    """

    def __init__(self, extents: Extents) -> None:
        device = extents.query_ends.device
        query_ends, key_ends = extents.query_ends.cpu().numpy(), extents.key_ends.cpu().numpy()
        queries, keys = np.diff(query_ends), np.diff(key_ends)
        continues = keys > queries  # a completion, after its prompt or another completion of that
        is_prompt = ~continues & np.append(continues[1:], False)
        padded = row_lengths(np.where(is_prompt, 0, keys), few_batches=device.type != "cpu")
        key_places = _Places(key_ends[-1])
        self.each: list[SequenceBatch] = []
        for length in sorted(set(padded[padded > 0].tolist())):
            chosen = np.flatnonzero(padded == length)
            rows, is_key = _rows(key_ends[chosen], keys[chosen], length)
            self.each.append(SequenceBatch(to_device(rows.ravel(), device), len(chosen)))
            key_places.add(rows, is_key)
        # A segment's queries are the last of its keys; a prompt's are the first keys of the segment after it.
        first = key_ends[1:] - np.where(is_prompt, 0, queries)
        own = np.arange(query_ends[-1]) + np.repeat(first - query_ends[:-1], queries)
        self.places = to_device(key_places.places[own], device)


@dataclass(frozen=True)
class SequenceBatch:
    """So many sequences of about the same length: their rows, [count * M]; padding is the first row."""

    keys: torch.Tensor
    count: int


@dataclass(frozen=True)
class Batch:
    """Segments of about the same length.

    Attributes:
        queries, keys: their rows, [S * L] and [S * M]; padding is the first row.
        mask: 0 where a query sees a key, otherwise minus infinity, [S, L, M]. A padded query sees all keys.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    mask: torch.Tensor

    def inputs(
        self, query_T_A_D: torch.Tensor, key_K_G_D: torch.Tensor, value_K_G_D: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the batch's queries, [S, G, R * L, D], keys and values, [S, G, M, D], and mask, [S, 1, R * L, M].

        The queries of all heads that share keys are rows of one product: torch's flash attention for CPUs takes no
        fewer heads of keys than of queries.
        """
        groups = key_K_G_D.shape[1]
        query = self.grouped(query_T_A_D.index_select(0, self.queries), groups)
        key, value = (
            t.index_select(0, self.keys).view(len(self.mask), -1, *t.shape[1:]).transpose(1, 2)
            for t in (key_K_G_D, value_K_G_D)
        )
        mask = self.mask.repeat(1, query_T_A_D.shape[1] // groups, 1)[:, None]
        return query, key, value, mask.to(query.dtype)

    def grouped(self, rows: torch.Tensor, groups: int) -> torch.Tensor:
        """Return rows of queries or outputs, [S * L, A, D], as [S, G, R * L, D]."""
        segments, length, _ = self.mask.shape
        return rows.view(segments, length, groups, -1, rows.shape[-1]).permute(0, 2, 3, 1, 4).flatten(2, 3)

    def ungrouped(self, grouped: torch.Tensor, heads: int) -> torch.Tensor:
        """Return the inverse of `grouped`."""
        (segments, length, _), (_, groups, _, size) = self.mask.shape, grouped.shape
        by_head = grouped.view(segments, groups, heads // groups, length, size)
        return by_head.permute(0, 3, 1, 2, 4).reshape(-1, heads, size)


class _Places:
    """Where each row went, while batches are made."""

    def __init__(self, rows: int) -> None:
        self.places, self._before = np.empty(rows, np.int64), 0

    def add(self, rows: np.ndarray, real: np.ndarray) -> None:
        """Note the next batch's rows; those that are not real are padding."""
        self.places[rows[real]] = self._before + np.flatnonzero(real)
        self._before += rows.size


def _rows(starts: np.ndarray, lengths: np.ndarray, padded: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of some segments, padded with 0, and which of them are no padding, [S, padded] each."""
    real = np.arange(padded) < lengths[:, None]
    return np.where(real, starts[:, None] + np.arange(padded), 0), real
