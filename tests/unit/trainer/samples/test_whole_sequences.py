"""Rows of whole sequences: prompts are in their completions' rows, and on a GPU batches are few."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lorarl_trainer.kernels.packed import Segments
from lorarl_trainer.samples.packing import pack
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.whole_sequences import PADDED, row_lengths

LENGTHS = st.lists(st.integers(0, 3000), min_size=1, max_size=40)


def sample(prompt: range, response: range) -> Sample:
    return Sample(np.array([*prompt, *response]), len(prompt))


@given(LENGTHS)
def test_a_row_has_room_for_its_sequence_and_batches_are_no_more(tokens: list[int]) -> None:
    exact, joined = (row_lengths(np.array(tokens), few_batches=few) for few in (False, True))
    assert all(length % 64 == 0 and 0 <= length - of < 64 for length, of in zip(exact, tokens, strict=True))
    assert (joined >= exact).all() and ((joined > 0) == (np.array(tokens) > 0)).all()
    assert joined.sum() <= PADDED * exact.sum()
    assert set(joined) <= set(exact)


def test_short_rests_join_what_a_gpu_computes_anyway() -> None:
    tokens = np.array([320] * 24 + [7])
    assert row_lengths(tokens, few_batches=False)[-1] == 64
    assert set(row_lengths(tokens, few_batches=True)) == {320}
    assert set(row_lengths(np.array([4096, 64]), few_batches=True)) == {4096, 64}  # as much again


SAMPLES = [
    sample(range(10, 15), range(20, 90)),
    sample(range(10, 15), range(100, 103)),
    sample(range(30, 31), range(40, 42)),
    sample(range(50, 54), range(60, 70)),
    sample(range(50, 54), range(70, 71)),  # its response predicts nothing, so it has no segment
    sample(range(80, 86), range(90, 91)),
    sample(range(80, 86), range(91, 92)),
]


def test_each_token_is_found_after_all_that_it_follows() -> None:
    """By a layer whose state is the sum of the tokens so far."""
    packing = pack(SAMPLES, multiple=16)
    segments = Segments.of(packing, torch.device("cpu"))
    sequences = segments.extents.sequences
    keys = segments.keys(torch.from_numpy(packing.tokens)[:, None].float())[:, 0]
    made = [keys[batch.keys].view(batch.count, -1).cumsum(1).flatten() for batch in sequences.each]
    wanted = []
    for queries, ends in zip(pairwise(packing.query_ends), pairwise(packing.key_ends), strict=True):
        sums = packing.tokens[packing.keys[slice(*ends)]].cumsum()
        wanted.extend(sums[len(sums) - (queries[1] - queries[0]) :])
    assert torch.cat(made)[sequences.places].tolist() == wanted
    assert sum(batch.count for batch in sequences.each) == 6  # four with a response, a prompt alone, what fills the row


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_token_before_another_is_of_its_own_sequence(steps: int) -> None:
    """A completion's first tokens follow its prompt, and nothing comes before a prompt."""
    packing = pack(SAMPLES, multiple=16)
    segments, tokens = Segments.of(packing, torch.device("cpu")), torch.from_numpy(packing.tokens)
    nothing = torch.tensor([-1])
    found = segments.before(steps)(torch.cat([tokens, nothing])[:, None].float())[:, 0]
    wanted = []
    for queries, ends in zip(pairwise(packing.query_ends), pairwise(packing.key_ends), strict=True):
        sequence = [-1] * steps + packing.tokens[packing.keys[slice(*ends)]].tolist()
        own = queries[1] - queries[0]
        wanted.extend(sequence[len(sequence) - steps - own : len(sequence) - steps])
    assert found.tolist() == wanted
    assert segments.before(steps) is segments.before(steps)
