"""Blocks: read off where numbers arrive, and copied from one layout to another by slices alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lorarl_trainer.lora.blocks import Block, Numbers, copies, rectangles


def shuffled(adapter: torch.Tensor, rows: list[int], columns: list[int]) -> tuple[torch.Tensor, Block]:
    """A tensor of these rows and columns of an adapter, in this order, and the block that it is."""
    block = Block("a", np.arange(len(rows)), np.arange(len(columns)), np.array(rows), np.array(columns))
    return adapter[rows][:, columns].clone(), block


@st.composite
def parts(draw: st.DrawFn, size: int) -> list[int]:
    """Some of `size` rows in any order."""
    return draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True))


@given(parts(9), parts(5), parts(9), parts(5))
def test_what_two_layouts_have_in_common_is_copied_and_nothing_else(
    source_rows: list[int], source_columns: list[int], target_rows: list[int], target_columns: list[int]
) -> None:
    adapter = torch.arange(45.0).view(9, 5)
    source, source_block = shuffled(adapter, source_rows, source_columns)
    target, target_block = shuffled(adapter, target_rows, target_columns)
    expected = torch.full_like(target, -1)
    for row, hf_row in enumerate(target_rows):
        for column, hf_column in enumerate(target_columns):
            if hf_row in source_rows and hf_column in source_columns:
                expected[row, column] = adapter[hf_row, hf_column]
    target.fill_(-1)
    for one in copies(source_block, target_block):
        target[one.target_rows, one.target_columns] = source[one.source_rows, one.source_columns]
    assert torch.equal(target, expected)


def test_neighbours_travel_together() -> None:
    """Two key-value groups, interleaved as Megatron has them: each group's rows are one copy."""
    interleaved = Block("q", np.array([0, 1, 4, 5]), np.arange(3), np.arange(4), np.arange(3))
    plain = Block("q", np.arange(4), np.arange(3), np.arange(4), np.arange(3))
    assert [(one.source_rows, one.target_rows) for one in copies(interleaved, plain)] == [
        (slice(0, 2), slice(0, 2)),
        (slice(4, 6), slice(2, 4)),
    ]


def numbers(values: list[list[int]]) -> Numbers:
    return np.array(values, dtype=np.float32)


def test_rectangles_are_read_off_the_numbers_that_arrived() -> None:
    owners = numbers([[0, 0, 0, 3], [0, 5, 5, 3], [0, 5, 5, 3]])
    rows = numbers([[0, 0, 0, 1], [0, 7, 7, 2], [0, 3, 3, 0]])
    columns = numbers([[0, 0, 0, 4], [0, 2, 1, 4], [0, 2, 1, 4]])
    found = {number: [index.tolist() for index in one] for number, one in rectangles(owners, rows, columns)}
    assert found == {3: [[0, 1, 2], [3], [1, 2, 0], [4]], 5: [[1, 2], [1, 2], [7, 3], [2, 1]]}


def test_rows_of_one_owner_need_not_be_neighbours() -> None:
    owners = numbers([[1, 1], [2, 2], [1, 1]])
    (_, one), (_, two) = rectangles(owners, numbers([[5, 5], [0, 0], [6, 6]]), numbers([[0, 1]] * 3))
    assert [one.here_rows.tolist(), one.there_rows.tolist()] == [[0, 2], [5, 6]]
    assert [two.here_rows.tolist(), two.there_rows.tolist()] == [[1], [0]]


@pytest.mark.parametrize(
    ("owners", "rows", "columns"),
    [
        ([[1, 1], [1, 0]], [[0, 0], [1, 1]], [[0, 1], [0, 1]]),  # a corner is missing
        ([[1, 1], [1, 1]], [[0, 1], [1, 0]], [[0, 1], [0, 1]]),  # a row from two rows
        ([[1, 1], [1, 1]], [[0, 0], [1, 1]], [[0, 1], [1, 0]]),  # a column from two columns
    ],
)
def test_what_is_no_rectangle_is_refused(
    owners: list[list[int]], rows: list[list[int]], columns: list[list[int]]
) -> None:
    with pytest.raises(ValueError, match="whole rows and columns"):
        list(rectangles(numbers(owners), numbers(rows), numbers(columns)))


def test_a_large_matrix_is_read_in_a_few_passes() -> None:
    """Sorting, or picking elements one by one, made a GPU's start wait for a minute: as long as 100 passes and more."""
    owners = np.ones((8192, 256), dtype=np.float32)
    rows = np.repeat(np.arange(8192, dtype=np.float32)[:, None], 256, axis=1)
    columns = np.repeat(np.arange(256, dtype=np.float32)[None], 8192, axis=0)

    def seconds(work: Callable[[], object]) -> float:
        clock = time.perf_counter()
        work()
        return time.perf_counter() - clock

    one_pass = min(seconds(lambda: owners == rows) for _ in range(5))
    assert min(seconds(lambda: list(rectangles(owners, rows, columns))) for _ in range(5)) < 30 * one_pass
