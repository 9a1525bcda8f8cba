"""Triton kernels for what stands between a decoder layer's matrix products: each reads and writes the activations once.

`operations.py` has their plain twins and calls them on a GPU. All compute in float32 and round where vLLM's kernels do,
so that the engine and the trainer round alike: SwiGLU rounds silu(gate) before the product, all others only the result.
Shape suffixes: T tokens, H hidden size, F feed-forward size, O columns of q, k and v interleaved by group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from lorarl_trainer.kernels.gather import Gather
    from lorarl_trainer.kernels.heads import Angles, Heads

_COLUMNS = 2048
"""Columns that one program of an elementwise kernel takes of a row."""


def rms_norm(x_T_H: torch.Tensor, weight_H: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """See `operations.rms_norm`."""
    rows, columns = x_T_H.shape
    y_T_H, inverse_T = torch.empty_like(x_T_H), x_T_H.new_empty(rows, dtype=torch.float32)
    block = triton.next_power_of_2(columns)
    _rms_norm[(rows,)](x_T_H, weight_H, y_T_H, inverse_T, columns, eps, BLOCK=block, num_warps=_warps(block))
    return y_T_H, inverse_T


def rms_norm_backward(
    by_y_T_H: torch.Tensor,
    by_residual_T_H: torch.Tensor,
    x_T_H: torch.Tensor,
    weight_H: torch.Tensor,
    inverse_T: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `operations.rms_norm_backward`."""
    rows, columns = x_T_H.shape
    by_x_T_H, block = torch.empty_like(x_T_H), triton.next_power_of_2(columns)
    _rms_norm_backward[(rows,)](
        by_y_T_H, by_residual_T_H, x_T_H, weight_H, inverse_T, by_x_T_H, columns, BLOCK=block, num_warps=_warps(block)
    )
    return by_x_T_H, by_y_T_H


def swiglu(gate_up_T_2F: torch.Tensor) -> torch.Tensor:
    """See `operations.swiglu`."""
    rows, columns = gate_up_T_2F.shape[0], gate_up_T_2F.shape[1] // 2
    product_T_F = gate_up_T_2F.new_empty(rows, columns)
    _swiglu[(rows, triton.cdiv(columns, _COLUMNS))](gate_up_T_2F, product_T_F, columns, BLOCK=_COLUMNS)
    return product_T_F


def swiglu_backward(gate_up_T_2F: torch.Tensor, by_product_T_F: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `operations.swiglu_backward`."""
    rows, columns = by_product_T_F.shape
    by_gate_up_T_2F = torch.empty_like(gate_up_T_2F)
    _swiglu_backward[(rows, triton.cdiv(columns, _COLUMNS))](
        gate_up_T_2F, by_product_T_F, by_gate_up_T_2F, columns, BLOCK=_COLUMNS
    )
    return by_gate_up_T_2F, by_product_T_F


def take_heads(
    qkv_T_O: torch.Tensor,
    heads: Heads,
    rows: Gather | None,
    angles: Angles | None,
    norm: tuple[torch.Tensor, float] | None,
) -> torch.Tensor:
    """See `operations.take_heads`."""
    index = None if rows is None or rows.identity else rows.index
    count = qkv_T_O.shape[0] if index is None else index.shape[0]
    taken = qkv_T_O.new_empty(count, heads.count, heads.size)
    _take_heads[(count,)](
        qkv_T_O,
        taken if index is None else index,
        *(angles or (taken, taken)),
        *(norm or (taken, 0.0)),
        taken,
        qkv_T_O.shape[1],
        **_head_sizes(heads),
        INDEXED=index is not None,
        TURNED=angles is not None,
        NORMED=norm is not None,
    )
    return taken


def put_heads(
    by_taken: torch.Tensor,
    by_qkv_T_O: torch.Tensor,
    qkv_T_O: torch.Tensor,
    heads: Heads,
    rows: Gather | None,
    angles: Angles | None,
    norm: tuple[torch.Tensor, float] | None,
) -> None:
    """See `operations.put_heads`."""
    places = None if rows is None or rows.identity else (rows.order, rows.ends)
    by_taken = by_taken if by_taken.stride(2) == 1 else by_taken.contiguous()
    _put_heads[(by_qkv_T_O.shape[0],)](
        by_taken,
        *by_taken.stride()[:2],
        *(places or (by_taken, by_taken)),
        qkv_T_O,
        *(angles or (by_taken, by_taken)),
        *(norm or (by_taken, 0.0)),
        by_qkv_T_O,
        by_qkv_T_O.shape[1],
        **_head_sizes(heads),
        INDEXED=places is not None,
        TURNED=angles is not None,
        NORMED=norm is not None,
    )


def _warps(block: int) -> int:
    return min(max(block // 512, 1), 16)


def _head_sizes(heads: Heads) -> dict[str, int]:
    return {
        "HEADS": heads.count,
        "HEADS_IN_GROUP": heads.in_group,
        "FIRST": heads.first,
        "GROUP_WIDTH": heads.group_width,
        "HALF": heads.size // 2,
        "HEADS_BLOCK": triton.next_power_of_2(heads.count),
        "HALF_BLOCK": triton.next_power_of_2(heads.size // 2),
    }


@triton.jit
def _rms_norm(x, weight, y, inverse, columns, eps, BLOCK: tl.constexpr) -> Any:  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    over = 1.0 / tl.sqrt(tl.sum(value * value) / columns + eps)
    tl.store(y + row * columns + column, (value * over * scale).to(y.dtype.element_ty), mask=inside)
    tl.store(inverse + row, over)


@triton.jit
def _rms_norm_backward(  # type: ignore[no-untyped-def]
    by_y, by_residual, x, weight, inverse, by_x, columns, BLOCK: tl.constexpr
) -> Any:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    at = row * columns + column
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    over = tl.load(inverse + row)
    normed = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * over
    scaled = tl.load(by_y + at, mask=inside, other=0.0).to(tl.float32) * scale
    result = over * (scaled - normed * (tl.sum(scaled * normed) / columns))
    result += tl.load(by_residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(by_x + at, result.to(by_x.dtype.element_ty), mask=inside)
    tl.store(by_y + at, (normed * scale).to(by_y.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu(gate_up, product, columns, BLOCK: tl.constexpr) -> Any:  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    start = gate_up + row * 2 * columns
    gate = tl.load(start + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(start + columns + column, mask=inside, other=0.0).to(tl.float32)
    silu = (gate * tl.sigmoid(gate)).to(product.dtype.element_ty).to(tl.float32)
    tl.store(product + row * columns + column, (silu * up).to(product.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu_backward(gate_up, by_product, by_gate_up, columns, BLOCK: tl.constexpr) -> Any:  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    start, by_start, at = (
        gate_up + row * 2 * columns,
        by_gate_up + row * 2 * columns,
        by_product + row * columns + column,
    )
    gate = tl.load(start + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(start + columns + column, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    silu = gate * sigmoid
    by_gate = gradient * up * sigmoid * (1.0 + gate - silu)
    tl.store(by_start + column, by_gate.to(by_gate_up.dtype.element_ty), mask=inside)
    tl.store(by_start + columns + column, (gradient * silu).to(by_gate_up.dtype.element_ty), mask=inside)
    rounded = silu.to(by_product.dtype.element_ty).to(tl.float32)
    tl.store(at, (rounded * up).to(by_product.dtype.element_ty), mask=inside)


@triton.jit
def _take_heads(  # type: ignore[no-untyped-def]
    qkv,
    index,
    cosines,
    sines,
    weight,
    eps,
    taken,
    width,
    HEADS: tl.constexpr,
    HEADS_IN_GROUP: tl.constexpr,
    FIRST: tl.constexpr,
    GROUP_WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    INDEXED: tl.constexpr,
    TURNED: tl.constexpr,
    NORMED: tl.constexpr,
) -> Any:
    row = tl.program_id(0).to(tl.int64)
    source = row
    if INDEXED:
        source = tl.load(index + row)
    head = tl.arange(0, HEADS_BLOCK)[:, None]
    column = tl.arange(0, HALF_BLOCK)[None, :]
    inside = (head < HEADS) & (column < HALF)
    start = (head // HEADS_IN_GROUP) * GROUP_WIDTH + FIRST + (head % HEADS_IN_GROUP) * (2 * HALF) + column
    low = tl.load(qkv + source * width + start, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(qkv + source * width + start + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        over = 1.0 / tl.sqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / (2 * HALF) + eps)
        low *= over[:, None] * tl.load(weight + column, mask=column < HALF, other=0.0).to(tl.float32)
        high *= over[:, None] * tl.load(weight + HALF + column, mask=column < HALF, other=0.0).to(tl.float32)
    if TURNED:
        cosine = tl.load(cosines + source * HALF + column, mask=column < HALF, other=0.0)
        sine = tl.load(sines + source * HALF + column, mask=column < HALF, other=0.0)
        turned = low * cosine - high * sine
        high = high * cosine + low * sine
        low = turned
    target = taken + row * (HEADS * 2 * HALF) + head * (2 * HALF) + column
    tl.store(target, low.to(taken.dtype.element_ty), mask=inside)
    tl.store(target + HALF, high.to(taken.dtype.element_ty), mask=inside)


@triton.jit
def _put_heads(  # type: ignore[no-untyped-def]
    by_taken,
    row_stride,
    head_stride,
    order,
    ends,
    qkv,
    cosines,
    sines,
    weight,
    eps,
    by_qkv,
    width,
    HEADS: tl.constexpr,
    HEADS_IN_GROUP: tl.constexpr,
    FIRST: tl.constexpr,
    GROUP_WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    INDEXED: tl.constexpr,
    TURNED: tl.constexpr,
    NORMED: tl.constexpr,
) -> Any:
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS_BLOCK)[:, None]
    column = tl.arange(0, HALF_BLOCK)[None, :]
    inside = (head < HEADS) & (column < HALF)
    by_start = by_taken + head * head_stride + column
    if INDEXED:
        low = tl.zeros([HEADS_BLOCK, HALF_BLOCK], tl.float32)
        high = tl.zeros([HEADS_BLOCK, HALF_BLOCK], tl.float32)
        for place in range(tl.load(ends + row), tl.load(ends + row + 1)):
            source = by_start + tl.load(order + place) * row_stride
            low += tl.load(source, mask=inside, other=0.0).to(tl.float32)
            high += tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    else:
        low = tl.load(by_start + row * row_stride, mask=inside, other=0.0).to(tl.float32)
        high = tl.load(by_start + row * row_stride + HALF, mask=inside, other=0.0).to(tl.float32)
    if TURNED:
        cosine = tl.load(cosines + row * HALF + column, mask=column < HALF, other=0.0)
        sine = tl.load(sines + row * HALF + column, mask=column < HALF, other=0.0)
        turned = low * cosine + high * sine
        high = high * cosine - low * sine
        low = turned
    start = (head // HEADS_IN_GROUP) * GROUP_WIDTH + FIRST + (head % HEADS_IN_GROUP) * (2 * HALF) + column
    if NORMED:
        low_value = tl.load(qkv + row * width + start, mask=inside, other=0.0).to(tl.float32)
        high_value = tl.load(qkv + row * width + start + HALF, mask=inside, other=0.0).to(tl.float32)
        over = 1.0 / tl.sqrt((tl.sum(low_value * low_value, 1) + tl.sum(high_value * high_value, 1)) / (2 * HALF) + eps)
        low_value *= over[:, None]
        high_value *= over[:, None]
        low *= tl.load(weight + column, mask=column < HALF, other=0.0).to(tl.float32)
        high *= tl.load(weight + HALF + column, mask=column < HALF, other=0.0).to(tl.float32)
        mean = (tl.sum(low * low_value, 1) + tl.sum(high * high_value, 1)) / (2 * HALF)
        low = over[:, None] * (low - low_value * mean[:, None])
        high = over[:, None] * (high - high_value * mean[:, None])
    target = by_qkv + row * width + start
    tl.store(target, low.to(by_qkv.dtype.element_ty), mask=inside)
    tl.store(target + HALF, high.to(by_qkv.dtype.element_ty), mask=inside)
