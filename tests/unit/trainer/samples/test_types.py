"""How samples and completions travel."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from lorarl_trainer.samples.routing import Routing, own_choice, routing_type
from lorarl_trainer.samples.types import Completion, Completions, Sample, Samples


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


def test_advantages_of_tokens_travel_unchanged() -> None:
    stream = np.random.default_rng(1)
    sent = Samples(
        dataclasses.replace(sample, advantage=stream.normal(size=sample.response_length).astype(np.float32))
        for sample in some_samples(with_rollout=True)
    )
    received = pickle.loads(pickle.dumps(sent, protocol=5))
    for ours, theirs in zip(sent, received, strict=True):
        np.testing.assert_equal(dataclasses.asdict(theirs), dataclasses.asdict(ours))


@pytest.mark.parametrize("count", [0, 3])
def test_completions_travel_unchanged(count: int) -> None:
    sent = Completions(Completion(np.arange(i + 1), np.full(i, 0.5, np.float32), i % 2 == 0, 7) for i in range(count))
    received = pickle.loads(pickle.dumps(sent, protocol=5))
    assert len(received) == count
    for ours, theirs in zip(sent, received, strict=True):
        np.testing.assert_equal(dataclasses.asdict(theirs), dataclasses.asdict(ours))


def test_what_a_critic_learns_from_travels_unchanged() -> None:
    stream = np.random.default_rng(0)
    sent = Samples(
        dataclasses.replace(
            sample,
            advantage=stream.normal(size=sample.response_length).astype(np.float32),
            values=stream.normal(size=sample.response_length).astype(np.float32),
            returns=stream.normal(size=sample.response_length).astype(np.float32),
        )
        for sample in some_samples(with_rollout=True)
    )
    received = pickle.loads(pickle.dumps(sent, protocol=5))
    for ours, theirs in zip(sent, received, strict=True):
        np.testing.assert_equal(dataclasses.asdict(theirs), dataclasses.asdict(ours))


@pytest.mark.parametrize("experts", [254, 255])
def test_the_experts_of_tokens_travel_unchanged(experts: int) -> None:
    kind = routing_type(experts)
    assert np.dtype(kind).itemsize == (1 if experts < 255 else 2)

    def routing(tokens: int) -> Routing:
        rows = np.random.default_rng(tokens).integers(0, experts, (tokens, 2, 3)).astype(kind)
        assert own_choice(rows) >= experts
        return rows

    samples = some_samples(with_rollout=True)
    sent = Samples(dataclasses.replace(sample, routing=routing(len(sample.tokens) - 1)) for sample in samples)
    made = Completions(
        Completion(np.arange(i + 1), np.full(i + 1, 0.5, np.float32), True, 7, routing=routing(i + 4)) for i in range(3)
    )
    for values in (sent, made):
        received = pickle.loads(pickle.dumps(values, protocol=5))
        for ours, theirs in zip(values, received, strict=True):
            np.testing.assert_equal(dataclasses.asdict(theirs), dataclasses.asdict(ours))
            assert theirs.routing is not None and theirs.routing.dtype == kind
