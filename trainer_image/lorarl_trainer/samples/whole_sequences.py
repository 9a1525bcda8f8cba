"""How long the rows are in which a layer that keeps a state sees whole sequences."""

from __future__ import annotations

import numpy as np

PADDED = 1.125
"""The most by which rows grow where shorter sequences join longer ones."""
_MULTIPLE = 64
"""Sequences whose lengths are equal when rounded up to this share a batch: a delta net computes such chunks anyway."""
_CALL_TOKENS = 2048
"""Tokens that a GPU computes while the CPU starts a batch's kernels. On an H200, 8 rows of 320 took as long as one."""


def row_lengths(tokens: np.ndarray, *, few_batches: bool) -> np.ndarray:
    """Return how long the row of each sequence is, [S]; 0 for one without tokens.

    Args:
        tokens: of each sequence, [S].
        few_batches: whether shorter sequences get longer rows, so that batches are fewer. A GPU waits for the CPU to
            start a batch's kernels. This never makes the rows more than `PADDED` times as long.
    """
    padded = -(-tokens // _MULTIPLE) * _MULTIPLE
    lengths, counts = (found.tolist() for found in np.unique(padded, return_counts=True))
    chosen, spare = dict(zip(lengths, lengths, strict=True)), int(padded.sum() * (PADDED - 1)) * few_batches
    for i in range(len(lengths) - 2, -1, -1):
        longer = chosen[lengths[i + 1]]
        more = counts[i] * (longer - lengths[i])
        if lengths[i] and more <= min(spare, _CALL_TOKENS):
            chosen[lengths[i]], spare = longer, spare - more
    return np.array([chosen[length] for length in padded.tolist()], padded.dtype)
