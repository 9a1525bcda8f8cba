"""Blocks: read off where numbers arrive, and copied from one layout to another by slices alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lorarl_trainer.lora.blocks import Block, copies, rectangle


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


def test_a_rectangle_is_read_off_the_numbers_that_arrived() -> None:
    rows = torch.tensor([[0, 0, 0], [0, 7, 7], [0, 3, 3]])
    columns = torch.tensor([[0, 0, 0], [0, 2, 1], [0, 2, 1]])
    here_rows, here_columns, there_rows, there_columns = rectangle(
        torch.tensor([[False] * 3, [False, True, True], [False, True, True]]), rows, columns
    )
    assert [index.tolist() for index in (here_rows, here_columns, there_rows, there_columns)] == [
        [1, 2],
        [1, 2],
        [7, 3],
        [2, 1],
    ]


@pytest.mark.parametrize(
    ("marked", "rows"),
    [
        ([[True, True], [True, False]], [[0, 0], [1, 1]]),  # a corner is missing
        ([[True, True], [True, True]], [[0, 1], [1, 0]]),  # a row from two rows
    ],
)
def test_what_is_no_rectangle_is_refused(marked: list[list[bool]], rows: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="whole rows and columns"):
        rectangle(torch.tensor(marked), torch.tensor(rows), torch.tensor([[0, 1], [0, 1]]))
