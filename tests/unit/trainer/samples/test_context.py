"""Ranks that share a packing: each token is on one of them, sees what it saw, and the work is even."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorarl_trainer.samples.context import divide, share_of
from lorarl_trainer.samples.packing import Packing, pack
from lorarl_trainer.samples.sample import Sample


def ragged(seed: int, prompts: int, longest: int) -> list[Sample]:
    """Prompts with one to four completions each; some tokens of some completions are not trained."""
    stream = np.random.default_rng(seed)
    samples = []
    for _ in range(prompts):
        prompt = stream.integers(0, 9, 1 + int(stream.integers(longest)))
        for _ in range(1 + int(stream.integers(4))):
            length = 1 + int(stream.integers(longest))
            mask = stream.random(length) < 0.8 if stream.random() < 0.3 else None
            tokens = np.concatenate([prompt, stream.integers(0, 9, length)])
            routing = stream.integers(0, 8, (len(tokens), 2, 3)).astype(np.uint8)  # of two layers, three experts each
            samples.append(Sample(tokens, len(prompt), mask=mask, routing=routing))
    return samples


def seen(packing: Packing) -> Iterator[list[int]]:
    """The keys that each token sees, in the row's order."""
    for segment in range(len(packing.query_ends) - 1):
        queries = int(packing.query_ends[segment + 1] - packing.query_ends[segment])
        keys = packing.keys[packing.key_ends[segment] : packing.key_ends[segment + 1]].tolist()
        for query in range(queries):
            yield keys[: len(keys) - (queries - 1 - query)]


@given(seed=st.integers(0, 1000), prompts=st.integers(1, 5), longest=st.integers(1, 40), ranks=st.integers(1, 5))
def test_ranks_compute_together_what_one_computes(seed: int, prompts: int, longest: int, ranks: int) -> None:
    packing = pack(ragged(seed, prompts, longest), 4 * ranks)
    parts = divide(packing.positions, ranks)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(packing.tokens)))
    of_all = np.concatenate(parts)  # where the keys of all ranks come from
    whole, trained = list(seen(packing)), []
    for rank, own in enumerate(parts):
        share = share_of(packing, rank, ranks)
        assert len(share.packing.tokens) == len(packing.tokens) // ranks
        assert share.packing.tokens.tolist() == packing.tokens[own].tolist()
        assert packing.routing is not None and share.packing.routing is not None
        assert np.array_equal(share.packing.routing, packing.routing[own])
        assert share.packing.positions.tolist() == packing.positions[own].tolist()
        assert [of_all[keys].tolist() for keys in seen(share.packing)] == [whole[token] for token in own]
        assert own[share.packing.predictors].tolist() == packing.predictors[share.trained].tolist()
        assert share.packing.targets.tolist() == packing.targets[share.trained].tolist()
        assert share.trained_of_all == len(packing.targets)
        trained += share.trained.tolist()
    assert sorted(trained) == list(range(len(packing.targets)))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("prompts", [1, 4])
def test_ranks_see_as_many_keys(ranks: int, prompts: int) -> None:
    for seed in range(20):
        packing = pack(ragged(seed, prompts, 1000), 16 * ranks)
        keys = [int((packing.positions[own] + 1).sum()) for own in divide(packing.positions, ranks)]
        assert max(keys) < 1.05 * sum(keys) / ranks


def test_of_one_long_prompt_a_rank_gets_the_middle() -> None:
    (middle, rest) = divide(np.arange(1024), 2)
    assert middle.tolist() == list(range(256, 768))
    assert len(rest) == 512
