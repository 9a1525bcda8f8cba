"""Which experts a rollout's tokens were sent to, as small numbers: an array [tokens, layers, experts of a token].

A row belongs to a token that the engine computed: all of a sequence but its last. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

type Routing = np.ndarray[Any, np.dtype[np.uint8 | np.int16]]
"""[T, layers, K]. `own_choice` stands for a token whose experts are not known."""

ROUTING_CHANGED = "routing_changed"
"""The metric of how much the routing would differ without replay."""


def routing_type(experts: int) -> type[np.uint8 | np.int16]:
    """Return the smallest type for the numbers of so many experts and one number more."""
    return np.uint8 if experts < np.iinfo(np.uint8).max else np.int16


def own_choice(routing: Routing) -> int:
    """Return the number that stands for no expert: the trainer chooses."""
    return int(np.iinfo(routing.dtype).max)


def is_known(routing: Routing | None) -> bool:
    """Return whether the experts of each token are known."""
    return routing is not None and not bool((routing[:, 0, 0] == own_choice(routing)).any())


def rows_of(routing: Routing | None, like: Routing, first: int, last: int) -> Routing:
    """Return the rows of some tokens of a sequence, or rows of no experts in the form of `like` if there are none."""
    if routing is not None:
        return routing[first:last]
    return np.full((last - first, *like.shape[1:]), own_choice(like), like.dtype)


def example_of(routings: Sequence[Routing | None]) -> Routing | None:
    """Return one that is there; None if none is."""
    return next((routing for routing in routings if routing is not None), None)
