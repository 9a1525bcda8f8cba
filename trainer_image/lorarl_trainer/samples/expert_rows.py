"""How many rows of tokens travel to each rank where ranks share the experts, counted before any layer computes.

Pure functions on numpy arrays. Suffixes: T tokens of one rank, L layers, K experts of a token, P ranks.
"""

from __future__ import annotations

import numpy as np

from lorarl_trainer.samples.arrays import Ints
from lorarl_trainer.samples.routing import Routing, own_choice


def any_experts(active: int, experts: int) -> Ints:
    """Return experts for tokens that nothing is made of, [K], spread over all."""
    return np.arange(active) * experts // active


def count_rows(routing_T_L_K: Routing, experts: int, ranks: int) -> Ints:
    """Return for each rank and layer the tokens with some expert there, and the pairs of a token and an expert.

    A token whose experts are not known has those of `any_experts`. Each rank has as many of the `experts`, in their
    order. The result is [P, L, 2].
    """
    (tokens, layers, active), of_rank = routing_T_L_K.shape, experts // ranks
    rank_T_L_K = routing_T_L_K // of_rank
    rank_T_L_K[routing_T_L_K[:, 0, 0] == own_choice(routing_T_L_K)] = any_experts(active, experts) // of_rank
    found = np.empty((ranks, layers, 2), np.int64)
    for rank in range(ranks):
        there_T_L_K = rank_T_L_K == rank
        goes_T_L = there_T_L_K[..., 0].copy()
        for place in range(1, active):  # many times faster than `any` over so few
            goes_T_L |= there_T_L_K[..., place]
        found[rank, :, 0] = goes_T_L.sum(0)
        found[rank, :, 1] = there_T_L_K.reshape(tokens, -1).sum(0).reshape(layers, active).sum(1)
    return found
