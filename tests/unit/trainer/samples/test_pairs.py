"""Nothing separates the two answers of a preference pair: neither workers nor micro-batches."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorarl_trainer.backends.micro_batch import grouped
from lorarl_trainer.samples.packing import split_evenly
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.wire import Samples


@st.composite
def some_pairs(draw: st.DrawFn) -> list[Sample]:
    """Pairs of a few prompts: several pairs may be of one."""
    tokens = st.lists(st.integers(0, 9), min_size=1, max_size=8)
    prompts = draw(st.lists(tokens, min_size=1, max_size=4))
    picked = draw(st.lists(st.tuples(st.sampled_from(prompts), tokens, tokens), min_size=1, max_size=10))
    return [
        Sample(np.array([*prompt, *answer]), len(prompt), pair=number)
        for number, (prompt, *answers) in enumerate(picked)
        for answer in answers
    ]


def require_whole_pairs(groups: Sequence[Sequence[int]], samples: list[Sample]) -> None:
    """Require every pair once, the chosen answer before the rejected one, and nothing between them."""
    assert sorted(index for group in groups for index in group) == list(range(len(samples)))
    for group in groups:
        assert len(group) % 2 == 0
        assert all(
            first % 2 == 0 and second == first + 1 for first, second in zip(group[::2], group[1::2], strict=True)
        )


@pytest.mark.parametrize("packed", [True, False])
@given(samples=some_pairs(), tokens=st.integers(1, 80), keys=st.none() | st.integers(1, 80))
def test_micro_batches_hold_whole_pairs(samples: list[Sample], tokens: int, keys: int | None, packed: bool) -> None:
    require_whole_pairs(grouped(samples, tokens, keys, packed), samples)


@given(samples=some_pairs(), workers=st.integers(1, 5))
def test_workers_get_whole_pairs(samples: list[Sample], workers: int) -> None:
    require_whole_pairs(split_evenly(samples, workers), samples)


def test_pairs_of_one_prompt_are_shared_between_workers() -> None:
    samples = [Sample(np.array([1, 2, 3, answer]), 1, pair=number) for number in range(6) for answer in (4, 5)]
    assert [len(share) for share in split_evenly(samples, 2)] == [6, 6]


def test_pairs_travel_with_their_samples() -> None:
    samples = Samples(Sample(np.arange(4), 2, advantage=sign, pair=7) for sign in (1.0, -1.0))
    arrived = pickle.loads(pickle.dumps(samples))
    assert [(sample.pair, sample.advantage) for sample in arrived] == [(7, 1.0), (7, -1.0)]
