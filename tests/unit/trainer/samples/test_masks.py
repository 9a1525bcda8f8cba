"""A mask chooses which tokens of a response are trained, and changes nothing else of a packing."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lorarl_trainer.backends.micro_batch import MicroBatch, packed_batch, padded_batch
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.wire import Samples

CPU = torch.device("cpu")


@st.composite
def masked_samples(draw: st.DrawFn) -> list[Sample]:
    """Samples of a few prompts. The first token of a response is trained, since it ends the prompt; others may be."""
    tokens = st.lists(st.integers(0, 9), min_size=1, max_size=8)
    prompts = draw(st.lists(tokens, min_size=1, max_size=3))
    picked = draw(st.lists(st.tuples(st.sampled_from(prompts), tokens), min_size=1, max_size=8))
    return [
        Sample(
            np.array([*prompt, *response]),
            len(prompt),
            mask=np.array([True, *(draw(st.booleans()) for _ in response[1:])]) if draw(st.booleans()) else None,
        )
        for prompt, response in picked
    ]


def laid_out(samples: list[Sample], packed: bool) -> MicroBatch:
    return packed_batch(samples, CPU, 4) if packed else padded_batch(samples, CPU)


@pytest.mark.parametrize("packed", [True, False])
@given(samples=masked_samples())
def test_only_trained_tokens_are_predicted(samples: list[Sample], packed: bool) -> None:
    batch = laid_out(samples, packed)
    whole = laid_out([replace(sample, mask=None) for sample in samples], packed)
    at = starts(samples)
    kept = np.concatenate([s.of_trained(np.arange(s.response_length)) + at[i] for i, s in enumerate(samples)])
    assert batch.count == len(kept) == sum(sample.trained_length for sample in samples)
    assert batch.targets[: batch.count].tolist() == whole.targets[kept].tolist()
    hidden = torch.arange(batch.tokens.numel(), dtype=torch.float32)[:, None]
    assert batch.predictors(hidden)[: batch.count].tolist() == whole.predictors(hidden)[kept].tolist()
    assert batch.tokens.tolist() == whole.tokens.tolist() and batch.positions.tolist() == whole.positions.tolist()


def starts(samples: list[Sample]) -> list[int]:
    return np.cumsum([0, *(sample.response_length for sample in samples[:-1])]).tolist()


@given(masked_samples())
def test_masks_travel_with_their_samples(samples: list[Sample]) -> None:
    arrived = pickle.loads(pickle.dumps(Samples(samples)))
    assert [sample.of_trained(sample.tokens[sample.prompt_length :]).tolist() for sample in arrived] == [
        sample.of_trained(sample.tokens[sample.prompt_length :]).tolist() for sample in samples
    ]
