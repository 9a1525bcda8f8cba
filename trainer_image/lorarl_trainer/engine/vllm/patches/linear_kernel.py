"""A Triton kernel for decoding few sequences: a linear layer with its adapter in the time of the base alone.

With few tokens a product takes as long as its weight takes to read. The adapter's two small products, and the addition
of both, took a quarter of that time once more. Here the kernel runs twice: for x Aᵀ, and for the whole. The second run
needs the first one's result only at the end. So it starts beside it (programmatic dependent launch, on GPUs from Hopper
on), and reads W meanwhile.

A program takes some rows of the weight and a part of the inputs. The last program that arrives with a part of the same
rows adds all parts up, in their order. So a result does not depend on the order of programs. Nor does it on other
tokens, but for their number: up to 32 tokens, inputs are divided into more parts than from 33 to 64.

Shape suffixes: T tokens, I inputs, O outputs, R ranks of all slices; in the kernel, those of its tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

MOST_TOKENS = 64
"""On an H200 at 7B, the products of a decode step take 3.7 ms instead of 4.5 with 16 tokens, and 4.4 instead of 4.8
with 64; with 128 they would take 6.0 instead of 5.4 (benchmarks/results/gpu-2026-11-28-few-tokens.json)."""
_ROWS, _INPUTS, _STAGES, _WARPS = 64, 128, 3, 4
"""Of a tile of the weight, and how many of its tiles are on their way at a time."""
_LEAST_TILES, _MOST_PARTS = 4, 16
"""Tiles of a program: with fewer, it would only wait for the first. And programs that share outputs."""
_RANKS, _LEAST_SIDE = 32, 16
"""Ranks that are added at a time, and the least side of a tile that a matrix product takes."""


def fits(x_T_I: torch.Tensor, weight_O_I: torch.Tensor) -> bool:
    """Whether the kernel can multiply these: on which GPUs, how many tokens, and what its tiles are read by."""
    return (
        0 < len(x_T_I) <= MOST_TOKENS
        and x_T_I.dtype != torch.float32
        and torch.cuda.get_device_capability(x_T_I.device) == (9, 0)
        and weight_O_I.is_contiguous()
        and weight_O_I.shape[1] % 8 == 0
        and weight_O_I.data_ptr() % 16 == x_T_I.data_ptr() % 16 == 0
    )


def arrivals(a_R_I: torch.Tensor, b_O_R: torch.Tensor) -> torch.Tensor:
    """Return the counters of a layer's programs, int32, all zero. The kernel leaves them at zero."""
    return a_R_I.new_zeros(_tiles(len(a_R_I)) + _tiles(len(b_O_R)), dtype=torch.int32)


def adapted_product(
    x_T_I: torch.Tensor,
    weight_O_I: torch.Tensor,
    bias_O: torch.Tensor | None,
    a_R_I: torch.Tensor,
    b_O_R: torch.Tensor,
    arrived: torch.Tensor,
) -> torch.Tensor:
    """Return x Wᵀ + c + (x Aᵀ) Bᵀ [T, O]. x Aᵀ is rounded, and so is (x Aᵀ) Bᵀ + c before it is added.

    Args:
        x_T_I: bf16 or fp16, as all others.
        weight_O_I: W.
        bias_O: c.
        a_R_I: A.
        b_O_R: B, contiguous.
        arrived: this layer's counters.
    """
    of_a, of_weight = arrived.split([_tiles(len(a_R_I)), _tiles(len(weight_O_I))])
    x_T_I = x_T_I.contiguous()
    # The second run may write its sums while the first one still reads its own, so they cannot have the same memory.
    low_T_R, _sums_of_first = _launch(x_T_I, a_R_I, of_a)
    output_T_O, _ = _launch(x_T_I, weight_O_I, of_weight, bias_O, low_T_R, b_O_R)
    return output_T_O


def _tiles(rows: int) -> int:
    return triton.cdiv(rows, _ROWS)


def _launch(
    x_T_I: torch.Tensor,
    weight_O_I: torch.Tensor,
    arrived: torch.Tensor,
    bias_O: torch.Tensor | None = None,
    low_T_R: torch.Tensor | None = None,
    b_O_R: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the product and the memory of its parts' sums."""
    tokens, inputs = x_T_I.shape
    outputs, ranks = len(weight_O_I), 0 if low_T_R is None else low_T_R.shape[1]
    columns = max(_LEAST_SIDE, triton.next_power_of_2(tokens))
    tiles, blocks = _tiles(outputs), triton.cdiv(inputs, _INPUTS)
    programs = _multiprocessors(x_T_I) * (2 if columns <= 32 else 1)
    each = max(_LEAST_TILES, triton.cdiv(blocks, min(max(1, round(programs / tiles)), _MOST_PARTS)))
    parts = triton.cdiv(blocks, each)
    output_T_O = x_T_I.new_empty((tokens, outputs))
    sums = output_T_O if parts == 1 else x_T_I.new_empty((parts, tiles, _ROWS, columns), dtype=torch.float32)
    on_gpu = x_T_I.is_cuda  # Triton's interpreter has no such launch
    _multiply[(tiles, parts)](
        # One row of a wider tensor counts as contiguous too, with a stride that no descriptor takes.
        TensorDescriptor(x_T_I, [tokens, inputs], [inputs, 1], [columns, _INPUTS]),
        TensorDescriptor(weight_O_I, [outputs, inputs], [inputs, 1], [_ROWS, _INPUTS]),
        *(bias_O, low_T_R, b_O_R, output_T_O, sums, arrived, tokens, outputs, blocks, each, ranks),
        ADAPTED=low_T_R is not None,
        TOKENS=columns,
        ROWS=_ROWS,
        INPUTS=_INPUTS,
        RANKS=_RANKS if ranks > _LEAST_SIDE else _LEAST_SIDE,
        BESIDE=on_gpu,
        num_warps=_WARPS,
        num_stages=_STAGES,
        **({"launch_pdl": True} if on_gpu else {}),
    )
    return output_T_O, sums


def _multiprocessors(tensor: torch.Tensor) -> int:
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if tensor.is_cuda else 4


@triton.jit(do_not_specialize=["tokens", "outputs", "blocks", "each"])
def _multiply(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    low,
    b,
    output,
    sums,
    arrived,
    tokens,
    outputs,
    blocks,
    each,
    ranks,
    ADAPTED: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    RANKS: tl.constexpr,
    BESIDE: tl.constexpr,
):
    """Write x Wᵀ, or with an adapter x Wᵀ + c + low Bᵀ."""
    tile, part, tiles, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1)
    if BESIDE and not ADAPTED:
        # x may still be being written. Once it is there, the second run may start. It reads x without waiting: this
        # wait has seen the end of what wrote x, and the second run's reads are of what reached the L2 cache.
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row_O, token_T = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, TOKENS)
    total_O_T = tl.zeros([ROWS, TOKENS], tl.float32)
    for block in range(part * each, tl.minimum((part + 1) * each, blocks)):
        weight_O_I = weight.load([tile * ROWS, block * INPUTS])
        x_T_I = x.load([0, block * INPUTS])
        total_O_T = tl.dot(weight_O_I, x_T_I.T, total_O_T, input_precision="ieee")
    if ADAPTED:  # noqa: SIM102  # Triton compiles nothing of this without an adapter
        if part == parts - 1:
            if BESIDE:
                tl.extra.cuda.gdc_wait()
            added_O_T = _of_adapter(bias, low, b, row_O, token_T, tokens, outputs, ranks, RANKS)
            total_O_T += added_O_T.to(tl.float32)
    is_last = True
    if parts > 1:
        places_O_T = (tile * ROWS + tl.arange(0, ROWS)[:, None]) * TOKENS + token_T[None, :]
        tl.store(sums + part * tiles * ROWS * TOKENS + places_O_T, total_O_T)
        tl.debug_barrier()  # every thread has written its part when one of them counts it
        is_last = tl.atomic_add(arrived + tile, 1) == parts - 1
        if is_last:
            total_O_T = tl.zeros([ROWS, TOKENS], tl.float32)
            for other in tl.range(0, parts, loop_unroll_factor=4):
                total_O_T += tl.load(sums + other * tiles * ROWS * TOKENS + places_O_T)
            tl.store(arrived + tile, 0)
    if is_last:
        known_O_T = (row_O < outputs)[:, None] & (token_T < tokens)[None, :]
        rounded_O_T = total_O_T.to(output.dtype.element_ty)
        tl.store(output + token_T[None, :] * outputs + row_O[:, None], rounded_O_T, mask=known_O_T)


@triton.jit
def _of_adapter(  # type: ignore[no-untyped-def]
    bias, low, b, row_O, token_T, tokens, outputs, ranks, RANKS: tl.constexpr
):
    """Return low Bᵀ + c of a tile, rounded."""
    total_O_T = tl.zeros([row_O.shape[0], token_T.shape[0]], tl.float32)
    for begin in range(0, ranks, RANKS):
        rank_R = begin + tl.arange(0, RANKS)
        known_O_R = (row_O < outputs)[:, None] & (rank_R < ranks)[None, :]
        known_R_T = (rank_R < ranks)[:, None] & (token_T < tokens)[None, :]
        b_O_R = tl.load(b + row_O[:, None] * ranks + rank_R[None, :], mask=known_O_R, other=0)
        low_R_T = tl.load(low + token_T[None, :] * ranks + rank_R[:, None], mask=known_R_T, other=0)
        total_O_T = tl.dot(b_O_R, low_R_T, total_O_T, input_precision="ieee")
    if bias is not None:
        total_O_T += tl.load(bias + row_O, mask=row_O < outputs, other=0).to(tl.float32)[:, None]
    return total_O_T.to(low.dtype.element_ty)
