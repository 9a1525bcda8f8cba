"""How padded sequences are grouped by token budget, and how samples travel."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorarl_trainer.samples.types import Completion, Completions, Sample, Samples, micro_batches

lengths_lists = st.lists(st.integers(1, 300), max_size=60)


@given(lengths_lists, st.integers(1, 2000))
def test_micro_batches_have_every_sequence_once_within_the_budget(lengths: list[int], budget: int) -> None:
    """The budget counts padded tokens."""
    groups = micro_batches(lengths, budget)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or max(lengths[i] for i in group) * len(group) <= budget


def some_samples(with_rollout: bool) -> Samples:
    stream = np.random.default_rng(0)
    lengths = [(3, 2), (1, 5), (4, 1)]
    return Samples(
        Sample(
            stream.integers(0, 60, p + r),
            p,
            float(p),
            stream.normal(size=r).astype(np.float32) if with_rollout else None,
        )
        for p, r in lengths
    )


@pytest.mark.parametrize("with_rollout", [True, False])
def test_samples_travel_unchanged(with_rollout: bool) -> None:
    sent = some_samples(with_rollout)
    received = pickle.loads(pickle.dumps(sent, protocol=5))
    assert len(received) == len(sent)
    for ours, theirs in zip(sent, received, strict=True):
        np.testing.assert_equal(dataclasses.asdict(theirs), dataclasses.asdict(ours))


@pytest.mark.parametrize("count", [0, 3])
def test_completions_travel_unchanged(count: int) -> None:
    sent = Completions(Completion(np.arange(i + 1), np.full(i, 0.5, np.float32), i % 2 == 0, 7) for i in range(count))
    received = pickle.loads(pickle.dumps(sent, protocol=5))
    assert len(received) == count
    for ours, theirs in zip(sent, received, strict=True):
        np.testing.assert_equal(dataclasses.asdict(theirs), dataclasses.asdict(ours))
