"""The Triton kernel for sums of rows: `row_sums.py` has its plain twin and calls it on a GPU.

Shape suffixes: T sums, K places of a sum, N rows, H columns.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_COLUMNS = 1024
"""Columns that one program takes of a sum."""


def sum_rows(rows_N_H: torch.Tensor, place_T_K: torch.Tensor, weights_T_K: torch.Tensor | None = None) -> torch.Tensor:
    """See `row_sums.sum_rows`."""
    rows_N_H, place_T_K = rows_N_H.contiguous(), place_T_K.contiguous()
    (sums, places), columns = place_T_K.shape, rows_N_H.shape[1]
    sums_T_H = rows_N_H.new_empty(sums, columns)
    _sum_rows[(sums, triton.cdiv(columns, _COLUMNS))](
        rows_N_H,
        place_T_K,
        place_T_K if weights_T_K is None else weights_T_K.contiguous(),
        sums_T_H,
        columns,
        PLACES=places,
        WEIGHTED=weights_T_K is not None,
        BLOCK=min(_COLUMNS, triton.next_power_of_2(columns)),
    )
    return sums_T_H


@triton.jit
def _sum_rows(  # type: ignore[no-untyped-def]
    rows, place, weights, sums, columns, PLACES: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr
) -> Any:
    number = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for one in range(PLACES):
        row = tl.load(place + number * PLACES + one).to(tl.int64)
        # A mask over all columns: nothing is read for a place without a row.
        value = tl.load(rows + row * columns + column, mask=inside & (row >= 0), other=0.0).to(tl.float32)
        if WEIGHTED:
            value *= tl.load(weights + number * PLACES + one).to(tl.float32)
        total += value
    tl.store(sums + number * columns + column, total.to(sums.dtype.element_ty), mask=inside)
