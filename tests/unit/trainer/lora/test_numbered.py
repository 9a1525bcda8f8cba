"""Numbers for the elements of many matrices at once."""

from __future__ import annotations

import torch

from lorarl_trainer.lora.numbered import column_numbers, on_host, owner_numbers, row_numbers, split

SHAPES = [(2, 3), (4,), (1, 2), (2, 3)]
"""Two matrices that are alike, one of a single row, and a vector, which is a column."""
CPU = torch.device("cpu")


def test_each_element_has_the_number_of_its_matrix_its_row_and_its_column() -> None:
    owners, rows, columns = (
        split(flat, SHAPES)
        for flat in (owner_numbers(SHAPES, 7, CPU), row_numbers(SHAPES, CPU), column_numbers(SHAPES, CPU))
    )
    assert [tuple(owner.shape) for owner in owners] == SHAPES
    assert [owner.unique().tolist() for owner in owners] == [[7], [8], [9], [10]]
    assert rows[0].tolist() == rows[3].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert columns[0].tolist() == columns[3].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert (rows[1].tolist(), columns[1].tolist()) == ([0, 1, 2, 3], [0, 0, 0, 0])
    assert (rows[2].tolist(), columns[2].tolist()) == ([[0, 0]], [[0, 1]])


def test_what_comes_to_the_host_has_the_shapes_that_it_had() -> None:
    tensors = [torch.arange(6.0).view(2, 3).t(), torch.arange(2.0)]
    assert [array.tolist() for array in on_host(tensors)] == [tensor.tolist() for tensor in tensors]
    assert on_host([]) == []
