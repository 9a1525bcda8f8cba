"""Triton kernels for a mixture's experts: `experts.py` has the plain twins of the first three, and calls them on a GPU.

`mix_few` is the whole mixture for few tokens, as in a step of generation. Large products wait for the weights then, and
each expert's are read once: a program takes some outputs of one expert, for all rows of that expert.

Shape suffixes: as in `experts.py`, and H hidden size, F an expert's inner size, I inputs of a layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from lorarl_trainer.kernels.row_sums import NOWHERE
from lorarl_trainer.kernels.triton_rows import sum_rows

_PAIRS = 1024
"""Pairs that a program of the sorting looks at together."""
_ROWS, _OUTPUTS = 64, 128
"""Of the products with a low rank."""
_FEW_ROWS = 64
"""Rows of an expert up to which the weights are what a product waits for."""


class Sizes(NamedTuple):
    """How much a program of a product takes: outputs at once, inputs at a time; and its warps and stages."""

    outputs: int
    inputs: int
    warps: int = 4
    stages: int = 4


GATE_UP, DOWN = Sizes(64, 64), Sizes(64, 128)


def sort_by_expert(
    chosen_T_K: torch.Tensor, first: int, experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `experts.sort_by_expert`."""
    chosen_T_K = chosen_T_K.contiguous()
    new, pairs = chosen_T_K.new_empty, chosen_T_K.numel()
    order_N, place_T_K = new(pairs, dtype=torch.int64), new(chosen_T_K.shape, dtype=torch.int64)
    place_T_K.fill_(NOWHERE)
    ends_E = new(experts, dtype=torch.int32)
    _sort_by_expert[(experts,)](chosen_T_K, order_N, place_T_K, ends_E, first, pairs, BLOCK=_PAIRS)
    return order_N, place_T_K, ends_E


def add_product(
    output_N_O: torch.Tensor, low_N_R: torch.Tensor, up_E_O_R: torch.Tensor, ends_E: torch.Tensor
) -> torch.Tensor:
    """See `experts.add_product`."""
    low_N_R = low_N_R.contiguous()
    (rows, outputs), (experts, _, rank) = output_N_O.shape, up_E_O_R.shape
    grid = triton.cdiv(rows, _ROWS), triton.cdiv(outputs, _OUTPUTS)
    _add_product[grid](
        output_N_O,
        low_N_R,
        up_E_O_R,
        ends_E,
        rows,
        outputs,
        experts,
        rank,
        *output_N_O.stride()[:1],
        *up_E_O_R.stride(),
        BLOCK_E=triton.next_power_of_2(experts),
        BLOCK_N=_ROWS,
        BLOCK_O=_OUTPUTS,
        BLOCK_R=_block_of(rank),
        PRECISION=_precision(low_N_R),
    )
    return output_N_O


def weighted_swiglu_backward(
    gate_up_N_2F: torch.Tensor, by_result_N_F: torch.Tensor, order_N: torch.Tensor, weights_T_K: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `experts.weighted_swiglu_backward`."""
    weights_T_K, (rows, columns) = weights_T_K.contiguous(), by_result_N_F.shape
    by_gate_up_N_2F, by_weights_T_K = torch.empty_like(gate_up_N_2F), torch.zeros_like(weights_T_K)
    block = triton.next_power_of_2(columns)
    _weighted_swiglu_backward[(rows,)](
        gate_up_N_2F,
        by_result_N_F,
        order_N.contiguous(),
        weights_T_K,
        by_gate_up_N_2F,
        by_weights_T_K,
        columns,
        BLOCK=block,
        num_warps=min(max(block // 256, 1), 16),
    )
    return by_gate_up_N_2F, by_weights_T_K, by_result_N_F


def are_few(rows: int, experts: int) -> bool:
    """Return whether so many rows of so many experts are few for `mix_few`."""
    return rows <= _FEW_ROWS * experts


def mix_few(
    x_T_H: torch.Tensor,
    weights_T_K: torch.Tensor,
    chosen_T_K: torch.Tensor,
    gate_up: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    down: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Return the mixture's output, [T, H], as `lora.grouped_experts.compute_mixture` does, without gradients.

    Args:
        x_T_H: tokens.
        weights_T_K: of a token's experts.
        chosen_T_K: the experts of each token.
        gate_up: each expert's gate, then its up, [E, 2F, H]; A [E, R, H] and B [E, 2F, R] of its adapter.
        down: each expert's down, [E, H, F]; A [E, R, F] and B [E, H, R] of its adapter.
    """
    x_T_H, (tokens, active) = x_T_H.contiguous(), chosen_T_K.shape
    experts = len(down[0])
    order_N, place_T_K, ends_E = sort_by_expert(chosen_T_K, 0, experts)
    # 1.5 times the mean; few experts have more.
    block = min(max(triton.next_power_of_2(3 * tokens * active // (2 * experts)), 16), _FEW_ROWS)
    h_N_F = _multiply(x_T_H, order_N, ends_E, *gate_up, active, block, GATE_UP, gated=True)
    y_N_H = _multiply(h_N_F, order_N, ends_E, *down, 0, block, DOWN, gated=False)
    return sum_rows(y_N_H, place_T_K, weights_T_K.to(x_T_H.dtype))


def _multiply(
    x: torch.Tensor,
    order_N: torch.Tensor,
    ends_E: torch.Tensor,
    weight_E_O_I: torch.Tensor,
    down_E_R_I: torch.Tensor,
    up_E_O_R: torch.Tensor,
    active: int,
    block: int,
    sizes: Sizes,
    *,
    gated: bool,
) -> torch.Tensor:
    """Return each row's product; x has a row for each of them, or one for each token if each has `active` experts."""
    rows, (experts, rank, inputs) = len(order_N), down_E_R_I.shape
    outputs = weight_E_O_I.shape[1] // (2 if gated else 1)
    low_N_R, output_N_O = x.new_empty(rows, rank), x.new_empty(rows, outputs)
    shared = {
        "INPUTS": inputs,
        "RANK": rank,
        "ACTIVE": active,
        "BLOCK_N": block,
        "BLOCK_R": _block_of(rank),
        "PRECISION": _precision(x),
    }
    _multiply_low[(experts,)](
        x, order_N, ends_E, down_E_R_I, low_N_R, BLOCK_I=min(128, triton.next_power_of_2(inputs)), **shared
    )
    _multiply_few[(triton.cdiv(outputs, sizes.outputs), experts)](
        x,
        order_N,
        ends_E,
        weight_E_O_I,
        low_N_R,
        up_E_O_R,
        output_N_O,
        OUTPUTS=outputs,
        GATED=gated,
        BLOCK_O=sizes.outputs,
        BLOCK_I=sizes.inputs,
        num_warps=sizes.warps,
        num_stages=sizes.stages,
        **shared,
    )
    return output_N_O


def _block_of(rank: int) -> int:
    return max(triton.next_power_of_2(rank), 16)  # the least that a product takes


def _precision(rows: torch.Tensor) -> str:
    return "ieee" if rows.dtype == torch.float32 else "tf32"


@triton.jit
def _sort_by_expert(chosen, order, place, ends, first, pairs, BLOCK: tl.constexpr) -> Any:  # type: ignore[no-untyped-def]
    """Program e counts the pairs of the experts before e, and puts its own behind those."""
    expert = tl.program_id(0)
    before = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        number = tl.load(chosen + pair, mask=pair < pairs, other=first - 1).to(tl.int32) - first
        before += ((number >= 0) & (number < expert)).to(tl.int32)
    reached = tl.sum(before)
    for start in range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        number = tl.load(chosen + pair, mask=pair < pairs, other=first - 1).to(tl.int32) - first
        mine = number == expert
        at = reached + tl.cumsum(mine.to(tl.int32)) - 1
        tl.store(order + at, pair.to(tl.int64), mask=mine)
        tl.store(place + pair, at.to(tl.int64), mask=mine)
        reached += tl.sum(mine.to(tl.int32))
    tl.store(ends + expert, reached)


@triton.jit
def _add_product(  # type: ignore[no-untyped-def]
    output,
    low,
    up,
    ends,
    rows,
    outputs,
    experts,
    rank,
    by_row,
    by_expert,
    by_output,
    by_rank,
    BLOCK_E: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_R: tl.constexpr,
    PRECISION: tl.constexpr,
) -> Any:
    """A program takes some rows, which belong to one expert after the other."""
    begin = tl.program_id(0) * BLOCK_N
    row, column = begin + tl.arange(0, BLOCK_N), tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    number, part = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_R)
    last = tl.minimum(begin + BLOCK_N, rows)
    end_E = tl.load(ends + number, mask=number < experts, other=2147483647)
    expert = tl.sum((end_E <= begin).to(tl.int32))
    lows = tl.load(
        low + row.to(tl.int64)[:, None] * rank + part[None], mask=(row < rows)[:, None] & (part < rank)[None], other=0.0
    )
    at = output + row.to(tl.int64)[:, None] * by_row + column[None]
    inside = (row < rows)[:, None] & (column < outputs)[None]
    total = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    while (begin < last) & (expert < experts):
        end = tl.load(ends + expert)
        mine = (row >= begin) & (row < end)
        matrix = tl.load(
            up + expert.to(tl.int64) * by_expert + part[:, None] * by_rank + column[None] * by_output,
            mask=(part < rank)[:, None] & (column < outputs)[None],
            other=0.0,
        )
        total = tl.dot(tl.where(mine[:, None], lows, 0.0).to(lows.dtype), matrix, total, input_precision=PRECISION)
        begin, expert = tl.maximum(begin, end), expert + 1
    tl.store(at, total.to(output.dtype.element_ty), mask=inside)


@triton.jit
def _weighted_swiglu_backward(  # type: ignore[no-untyped-def]
    gate_up, by_result, order, weights, by_gate_up, by_weights, columns, BLOCK: tl.constexpr
) -> Any:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    index = tl.load(order + row).to(tl.int64)
    weight = tl.load(weights + index).to(tl.float32)
    gate = tl.load(gate_up + row * 2 * columns + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * columns + columns + column, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(by_result + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    kind = by_result.dtype.element_ty
    sigmoid = tl.sigmoid(gate)
    silu = gate * sigmoid
    # Rounded where the forward pass rounds.
    product = (silu.to(kind).to(tl.float32) * up).to(kind).to(tl.float32)
    tl.store(by_weights + index, tl.sum(gradient * product).to(by_weights.dtype.element_ty))
    gradient *= weight
    by_gate = gradient * up * sigmoid * (1.0 + gate - silu)
    at = by_gate_up + row * 2 * columns + column
    tl.store(at, by_gate.to(by_gate_up.dtype.element_ty), mask=inside)
    tl.store(at + columns, (gradient * silu).to(by_gate_up.dtype.element_ty), mask=inside)
    tl.store(by_result + row * columns + column, (weight * product).to(kind), mask=inside)


@triton.jit
def _multiply_low(  # type: ignore[no-untyped-def]
    x,
    order,
    ends,
    down,
    low,
    INPUTS: tl.constexpr,
    RANK: tl.constexpr,
    ACTIVE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_I: tl.constexpr,
    PRECISION: tl.constexpr,
) -> Any:
    """Program e multiplies the rows of expert e with its A."""
    expert = tl.program_id(0)
    first, end = tl.load(ends + expert - 1, mask=expert > 0, other=0), tl.load(ends + expert)
    part, input = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_I)
    for start in range(first, end, BLOCK_N):
        row = start + tl.arange(0, BLOCK_N)
        there = row < end
        source = tl.load(order + row, mask=there, other=0) // ACTIVE if ACTIVE > 0 else row.to(tl.int64)
        total = tl.zeros([BLOCK_N, BLOCK_R], dtype=tl.float32)
        for i in range(0, INPUTS, BLOCK_I):
            inside = i + input < INPUTS
            values = tl.load(
                x + source[:, None] * INPUTS + i + input[None], mask=there[:, None] & inside[None], other=0.0
            )
            matrix = tl.load(
                down + expert.to(tl.int64) * RANK * INPUTS + part[None] * INPUTS + i + input[:, None],
                mask=(part < RANK)[None] & inside[:, None],
                other=0.0,
            )
            total = tl.dot(values, matrix, total, input_precision=PRECISION)
        tl.store(
            low + row.to(tl.int64)[:, None] * RANK + part[None],
            total.to(low.dtype.element_ty),
            mask=there[:, None] & (part < RANK)[None],
        )


@triton.jit
def _multiply_few(  # type: ignore[no-untyped-def]
    x,
    order,
    ends,
    weight,
    low,
    up,
    result,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    RANK: tl.constexpr,
    ACTIVE: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_R: tl.constexpr,
    PRECISION: tl.constexpr,
) -> Any:
    """A program takes some outputs of an expert; with a gate, as many of the gate too, and their product."""
    expert, column = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    first, end = tl.load(ends + expert - 1, mask=expert > 0, other=0), tl.load(ends + expert)
    kind = result.dtype.element_ty
    part, input, mine = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_I), column < OUTPUTS
    layers: tl.constexpr = 2 if GATED else 1
    matrices = weight + expert * layers * OUTPUTS * INPUTS + column[:, None] * INPUTS + input[None]
    ups = up + expert * layers * OUTPUTS * RANK + column[None] * RANK + part[:, None]
    of_rank = (part < RANK)[:, None] & mine[None]
    for start in range(first, end, BLOCK_N):
        row = start + tl.arange(0, BLOCK_N)
        there = row < end
        source = tl.load(order + row, mask=there, other=0) // ACTIVE if ACTIVE > 0 else row.to(tl.int64)
        one, other = tl.zeros([BLOCK_N, BLOCK_O], dtype=tl.float32), tl.zeros([BLOCK_N, BLOCK_O], dtype=tl.float32)
        for i in range(0, INPUTS, BLOCK_I):
            inside = i + input < INPUTS
            values = tl.load(
                x + source[:, None] * INPUTS + i + input[None], mask=there[:, None] & inside[None], other=0.0
            )
            some = mine[:, None] & inside[None]
            one = tl.dot(values, tl.trans(tl.load(matrices + i, mask=some, other=0.0)), one, input_precision=PRECISION)
            if GATED:
                matrix = tl.load(matrices + OUTPUTS * INPUTS + i, mask=some, other=0.0)
                other = tl.dot(values, tl.trans(matrix), other, input_precision=PRECISION)
        lows = tl.load(
            low + row.to(tl.int64)[:, None] * RANK + part[None], mask=there[:, None] & (part < RANK)[None], other=0.0
        )
        # Rounded where the trainer rounds.
        one = tl.dot(
            lows, tl.load(ups, mask=of_rank, other=0.0), one.to(kind).to(tl.float32), input_precision=PRECISION
        ).to(kind)
        if GATED:
            matrix = tl.load(ups + OUTPUTS * RANK, mask=of_rank, other=0.0)
            other = tl.dot(lows, matrix, other.to(kind).to(tl.float32), input_precision=PRECISION).to(kind)
            gate = one.to(tl.float32)
            one = ((gate * tl.sigmoid(gate)).to(kind).to(tl.float32) * other.to(tl.float32)).to(kind)
        tl.store(result + row.to(tl.int64)[:, None] * OUTPUTS + column[None], one, mask=there[:, None] & mine[None])
