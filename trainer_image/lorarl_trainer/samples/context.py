"""Which tokens of a packing each rank computes where several ranks share it: context parallelism.

A rank computes the queries of its own tokens, over the keys of all ranks' tokens. What a token takes in all else is the
same for each, and in attention it is the number of keys that it sees. So ranks get equally many tokens, and choose them
so that they see about as many keys together.

Pure functions on numpy arrays.
Shape suffixes: T tokens of a packing, S of them on one rank, N trained tokens of the packing, M of them on one rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lorarl_trainer.samples.arrays import Ints
from lorarl_trainer.samples.packing import Packing


@dataclass(frozen=True)
class Share:
    """One rank's part of a packing.

    Attributes:
        packing: its tokens as a separate row, [S]. Its segments are the parts of the whole packing's that are on
            this rank. Its `keys` point into all ranks' tokens, one rank's after the other's. Its `predictors` and
            `targets` are those of the trained tokens that this rank's tokens predict, [M].
        trained: which of all trained tokens these are, [M].
        trained_of_all: N.
    """

    packing: Packing
    trained: Ints
    trained_of_all: int


def divide(positions: Ints, ranks: int) -> list[Ints]:
    """Return the tokens of each rank, in their order: equally many, that see about as many keys together.

    A rank takes consecutive tokens of those that are left, which form a circle. Of all such choices one has its share
    of the keys, but for those of a token: on average they have it, and neighbours differ by little. Of a single long
    prompt, one of two ranks gets the second and the third quarter.

    `positions`: of each token in its sequence, [T]. It sees one key more. T is a multiple of `ranks`.
    """
    left, length, shares = np.arange(len(positions)), len(positions) // ranks, []
    for sharing in range(ranks, 1, -1):
        seen = positions[left] + 1
        # Keys that the tokens before each one see together, around the circle and on.
        before = np.concatenate([[0], np.cumsum(np.concatenate([seen, seen[:length]]))])
        away = np.abs(sharing * (before[length : length + len(left)] - before[: len(left)]) - seen.sum())
        taken = (int(np.argmin(away)) + np.arange(length)) % len(left)
        shares.append(np.sort(left[taken]))
        left = np.delete(left, taken)
    return [*shares, left]


def share_of(packing: Packing, rank: int, ranks: int) -> Share:
    """Return one rank's part of a packing whose length is a multiple of `ranks`."""
    shares = divide(packing.positions, ranks)
    own, place = shares[rank], np.empty(len(packing.tokens), np.int64)
    place[np.concatenate(shares)] = np.arange(len(place))  # where each token is among all ranks' tokens
    firsts, lasts, segments = _pieces(own, packing.query_ends)
    # A query sees the keys before its own and its own, and so do all queries of a piece together.
    hidden = packing.query_ends[segments + 1] - lasts
    keys = [
        packing.keys[first:last]
        for first, last in zip(packing.key_ends[segments], packing.key_ends[segments + 1] - hidden, strict=True)
    ]
    (trained,) = np.nonzero(np.isin(packing.predictors, own))
    return Share(
        packing=replace(
            packing,
            tokens=packing.tokens[own],
            positions=packing.positions[own],
            query_ends=_ends(lasts - firsts),
            key_ends=_ends(np.array([len(of_piece) for of_piece in keys])),
            keys=place[np.concatenate(keys)],
            predictors=np.searchsorted(own, packing.predictors[trained]),
            targets=packing.targets[trained],
            routing=None if packing.routing is None else packing.routing[own],
        ),
        trained=trained,
        trained_of_all=len(packing.predictors),
    )


def _pieces(own: Ints, query_ends: np.ndarray) -> tuple[Ints, Ints, Ints]:
    """Return where each run of consecutive tokens of one segment begins and ends in the row, and its segment."""
    segments = np.searchsorted(query_ends, own, side="right") - 1
    begins = np.concatenate([[True], (np.diff(own) > 1) | (np.diff(segments) > 0)])
    ends = np.concatenate([begins[1:], [True]])
    return own[begins], own[ends] + 1, segments[begins]


def _ends(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
