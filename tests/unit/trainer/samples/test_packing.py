"""How samples share a forward pass: a token sees its own sequence before it, and shared prompts are there once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lorarl_trainer.samples.packing import (
    pack,
    packed_length,
    packed_micro_batches,
    padded_micro_batches,
    prompt_groups,
    split_evenly,
)
from lorarl_trainer.samples.sample import Sample


@st.composite
def some_samples(draw: st.DrawFn) -> list[Sample]:
    """Samples of a few prompts, mixed; some prompts begin alike, and one token may be a whole response."""
    prompts = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=5))
    picked = draw(
        st.lists(
            st.tuples(st.sampled_from(prompts), st.lists(st.integers(0, 9), min_size=1, max_size=8)),
            min_size=1,
            max_size=25,
        )
    )
    return [Sample(np.array([*prompt, *response]), len(prompt)) for prompt, response in picked]


@given(some_samples(), st.integers(1, 16))
def test_every_predictor_sees_exactly_its_own_sequence_so_far(samples: list[Sample], multiple: int) -> None:
    packing = pack(samples, multiple)
    assert len(packing.tokens) == len(packing.positions) == packing.query_ends[-1]
    assert len(packing.tokens) % multiple == 0
    assert len(packing.keys) == packing.key_ends[-1]
    seen: dict[int, np.ndarray] = {}
    for number in range(len(packing.query_ends) - 1):
        queries = range(packing.query_ends[number], packing.query_ends[number + 1])
        keys = packing.keys[packing.key_ends[number] : packing.key_ends[number + 1]]
        for index, query in enumerate(queries):
            seen[query] = keys[: len(keys) - (len(queries) - 1 - index)]  # causal, aligned at the end
    assert sorted(seen) == list(range(len(packing.tokens)))
    expected = [
        (s.tokens[: s.prompt_length + i], s.tokens[s.prompt_length + i])
        for s in samples
        for i in range(s.response_length)
    ]
    assert len(packing.predictors) == len(packing.targets) == len(expected)
    for predictor, target, (before, response_token) in zip(packing.predictors, packing.targets, expected, strict=True):
        assert packing.tokens[seen[predictor]].tolist() == before.tolist()
        assert packing.positions[seen[predictor]].tolist() == list(range(len(before)))
        assert target == response_token


@given(some_samples(), st.integers(1, 16), st.data())
def test_each_token_keeps_its_experts(samples: list[Sample], multiple: int, data: st.DataObject) -> None:
    """The first sample's are taken for a shared prompt, and what fills the row up has none."""
    stream = np.random.default_rng(0)
    known = [data.draw(st.booleans()) for _ in samples]
    rows = [stream.integers(0, 255, (len(sample.tokens) - 1, 2, 3)).astype(np.uint8) for sample in samples]
    routed = [replace(s, routing=r if here else None) for s, r, here in zip(samples, rows, known, strict=True)]
    packing, plain = pack(routed, multiple), pack(samples, multiple)
    assert np.array_equal(packing.tokens, plain.tokens) and plain.routing is None
    if not any(known):
        assert packing.routing is None
        return
    assert packing.routing is not None and packing.routing.shape == (len(packing.tokens), 2, 3)
    ends = np.cumsum([sample.response_length for sample in samples])
    groups = prompt_groups(samples)
    for index, found in enumerate(np.split(packing.predictors, ends[:-1])):
        sample, alone = samples[index], next(len(group) for group in groups if index in group) == 1
        # What predicts the first response token is the prompt's last one.
        own = found if alone else found[1:]
        first = sample.prompt_length - 1 if alone else sample.prompt_length
        expected = rows[index][first:] if known[index] else np.full((len(own), 2, 3), 255)
        assert np.array_equal(packing.routing[own], expected)
    unused = len(packing.tokens) - sum(packed_length(samples, group) - len(group) for group in groups)
    assert unused == 0 or (packing.routing[-unused:] == 255).all()


@given(some_samples())
def test_a_shared_prompt_is_there_once(samples: list[Sample]) -> None:
    packing = pack(samples)
    groups = prompt_groups(samples)
    # The last token of a response predicts nothing.
    assert len(packing.tokens) == sum(packed_length(samples, group) - len(group) for group in groups)


@given(some_samples(), st.integers(1, 60))
def test_micro_batches_hold_every_sample_once_within_the_budget(samples: list[Sample], budget: int) -> None:
    batches = packed_micro_batches(samples, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(samples)))
    for batch in batches:
        assert len(batch) == 1 or len(pack([samples[i] for i in batch]).tokens) <= budget
    whole = {tuple(group) for group in prompt_groups(samples) if packed_length(samples, group) <= budget}
    assert all(any(set(group) <= set(batch) for batch in batches) for group in whole), "what fits stays together"


@given(some_samples(), st.integers(1, 60), st.integers(1, 90))
def test_micro_batches_have_no_more_keys_than_the_budget(samples: list[Sample], tokens: int, keys: int) -> None:
    """A prompt's keys are there once for each of its completions."""
    batches = packed_micro_batches(samples, tokens, keys)
    assert sorted(index for batch in batches for index in batch) == list(range(len(samples)))
    for batch in batches:
        packing = pack([samples[i] for i in batch])
        assert len(batch) == 1 or (len(packing.tokens) <= tokens and len(packing.keys) <= keys)


@given(some_samples(), st.integers(1, 8))
def test_workers_get_every_sample_once_and_about_the_same_number_of_tokens(samples: list[Sample], workers: int) -> None:
    shares = split_evenly(samples, workers)
    assert sorted(index for share in shares for index in share) == list(range(len(samples)))
    loads = [_load(samples, share) for share in shares]
    longest = max(len(sample.tokens) for sample in samples)
    assert max(loads) <= 1.05 * sum(loads) / workers + longest


def test_equal_groups_stay_together_where_that_is_even() -> None:
    samples = [Sample(np.array([prompt, 1, 2, 3]), 1) for prompt in range(8) for _ in range(4)]
    assert all(len(share) == 8 and _load(samples, share) == 26 for share in split_evenly(samples, 4))
    assert [len(share) for share in split_evenly(samples[:4], 4)] == [1, 1, 1, 1], (
        "fewer prompts than workers: groups are parted"
    )
    assert sorted(len(share) for share in split_evenly(samples[:12], 2)) == [6, 6], "three prompts on two workers"


def _load(samples: list[Sample], share: list[int]) -> int:
    chosen = [samples[i] for i in share]
    return sum(packed_length(chosen, group) for group in prompt_groups(chosen))


lengths_lists = st.lists(st.integers(1, 300), max_size=60)


@given(lengths_lists, st.integers(1, 2000))
def test_padded_micro_batches_have_every_sequence_once_within_the_budget(lengths: list[int], budget: int) -> None:
    """The budget counts padded tokens."""
    groups = padded_micro_batches(lengths, budget)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or max(lengths[i] for i in group) * len(group) <= budget
