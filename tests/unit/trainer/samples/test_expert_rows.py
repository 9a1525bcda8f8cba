"""How many rows of tokens travel to ranks that share experts, counted on the host."""

from __future__ import annotations

import numpy as np
import pytest

from lorarl_trainer.samples.expert_rows import any_experts, count_rows
from lorarl_trainer.samples.routing import own_choice, routing_type


@pytest.mark.parametrize(("experts", "active", "ranks"), [(8, 3, 2), (8, 3, 8), (4, 2, 1), (256, 8, 4)])
def test_each_ranks_tokens_and_pairs_are_counted(experts: int, active: int, ranks: int) -> None:
    stream = np.random.default_rng(0)
    chosen = stream.random((21, 5, experts)).argsort(-1)[..., :active].astype(routing_type(experts))
    chosen[-4:] = own_choice(chosen)
    found = count_rows(chosen, experts, ranks)
    for layer in range(5):
        sent = [set(of_token.tolist()) for of_token in chosen[:-4, layer]] + [set(any_experts(active, experts))] * 4
        for rank in range(ranks):
            there = [sum(expert // (experts // ranks) == rank for expert in of_token) for of_token in sent]
            assert found[rank, layer].tolist() == [sum(pairs > 0 for pairs in there), sum(there)]


@pytest.mark.parametrize(("active", "experts"), [(8, 128), (3, 8), (2, 2)])
def test_a_token_of_nothing_has_different_experts(active: int, experts: int) -> None:
    chosen = any_experts(active, experts)
    assert len(set(chosen.tolist())) == active and chosen.max() < experts
