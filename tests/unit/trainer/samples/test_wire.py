"""How samples and completions travel."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lorarl_trainer.samples.fields import Column, columns_of
from lorarl_trainer.samples.routing import Routing, own_choice, routing_type
from lorarl_trainer.samples.sample import Completion, Sample
from lorarl_trainer.samples.wire import Completions, Samples


@st.composite
def samples(draw: st.DrawFn) -> list[Sample]:
    """A few samples, each with any of the columns that it may lack."""
    count = draw(st.integers(0, 5))
    return [draw(sample_of(draw(st.integers(1, 4)), draw(st.integers(1, 5)))) for _ in range(count)]


@st.composite
def sample_of(draw: st.DrawFn, prompt: int, response: int) -> Sample:
    mask = draw(st.none() | hnp.arrays(np.bool_, response))
    bare = Sample(np.arange(prompt + response), prompt, mask=mask)
    columns = {name: column for name, column in columns_of(Sample).items() if getattr(bare, name) is None}
    values = {name: draw(st.none() | array_of(bare, column)) for name, column in columns.items() if name != "mask"}
    advantage = draw(st.floats(width=32, allow_nan=False) | array_of(bare, columns_of(Sample)["advantage"]))
    return dataclasses.replace(bare, advantage=advantage, fresh=draw(st.booleans()), **values)


def array_of(sample: Sample, column: Column) -> st.SearchStrategy[Any]:
    """What a column may have in a sample: a number of a whole sequence, or an array."""
    if column.per == "sequence":
        return st.integers(0, 9)
    shape: tuple[int, ...] = (sample.lengths[column.per],)
    return hnp.arrays(column.dtype or np.uint8, shape if column.dtype else (*shape, 2, 3))


def sent(values: Any) -> Any:
    return pickle.loads(pickle.dumps(values, protocol=5))


def require_equal(found: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(found) == len(expected)
    for theirs, ours in zip(found, expected, strict=True):
        for name, column in columns_of(type(ours)).items():
            value = getattr(theirs, name)
            np.testing.assert_equal(value, getattr(ours, name), err_msg=name)
            assert not isinstance(value, np.ndarray) or column.dtype in (None, value.dtype), name


@given(samples())
def test_every_column_travels_unchanged(made: list[Sample]) -> None:
    require_equal(sent(Samples(made)), made)


def test_values_of_trained_tokens_travel_with_a_mask() -> None:
    mask = np.array([True, True, False, False, True])
    of_trained = {name: column.dtype for name, column in columns_of(Sample).items() if column.per == "trained"}
    made = [
        Sample(np.arange(8), 3, mask=mask, **{name: np.arange(3).astype(kind) for name, kind in of_trained.items()})
        for _ in range(2)
    ]
    arrived = sent(Samples(made))
    assert {len(getattr(sample, name)) for sample in arrived for name in of_trained} == {3}
    require_equal(arrived, made)


@pytest.mark.parametrize("name", [name for name, column in columns_of(Sample).items() if column.per != "sequence"])
def test_an_array_of_another_length_does_not_travel(name: str) -> None:
    right = Sample(np.arange(8), 3, mask=np.array([True, True, False, False, True]))
    wrong = dataclasses.replace(right, **{name: np.ones(right.lengths[columns_of(Sample)[name].per] + 1, np.bool_)})
    if name == "tokens":  # which decide about all others
        wrong = dataclasses.replace(right, tokens=np.arange(9))
        name = "mask"
    with pytest.raises(ValueError, match=f"{name} of sample 1: found . values, expected ."):
        sent(Samples([right, wrong]))


def test_a_field_without_a_column_is_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class More(Sample):
        note: str = ""

    with pytest.raises(TypeError, match=r"More\.note: found a field without a column"):
        columns_of(More)


@pytest.mark.parametrize("count", [0, 3])
def test_completions_travel_unchanged(count: int) -> None:
    made = Completions(Completion(np.arange(i + 1), np.full(i, 0.5, np.float32), i % 2 == 0, 7) for i in range(count))
    require_equal(sent(made), made)


@pytest.mark.parametrize("experts", [254, 255])
def test_the_experts_of_tokens_travel_unchanged(experts: int) -> None:
    kind = routing_type(experts)
    assert np.dtype(kind).itemsize == (1 if experts < 255 else 2)

    def routing(tokens: int) -> Routing:
        rows = np.random.default_rng(tokens).integers(0, experts, (tokens, 2, 3)).astype(kind)
        assert own_choice(rows) >= experts
        return rows

    samples = Samples(Sample(np.arange(size), 1, routing=routing(size - 1)) for size in (5, 6, 5))
    made = Completions(
        Completion(np.arange(i + 1), np.full(i + 1, 0.5, np.float32), True, 7, routing=routing(i + 4)) for i in range(3)
    )
    for values in (samples, made):
        received = sent(values)
        require_equal(received, values)
        assert all(one.routing.dtype == kind for one in received)
