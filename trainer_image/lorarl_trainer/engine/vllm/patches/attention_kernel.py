"""Two Triton kernels for decoding: attention of each sequence's one new token to the keys in a paged cache.

Flash attention computes tiles of 128 queries, and a key-value head has seven in a 7B model. These tiles have 16. Where
few sequences leave multiprocessors idle, flash attention is faster: it divides them finer.

The trainer's attention is flash attention 3, and log-probabilities of both have to agree. So keys are taken in its
order, from the last to the first, and 128 at a time as in its own tiles. Then weights are rounded alike, and results
differ by 4e-5 of their norm instead of 2e-3. Keys beyond the first `_PART_TOKENS` are other programs' work, which
rounds by itself. Parts are added up in a fixed order, so what else is in the batch makes no difference.

Shape suffixes: T sequences, A attention heads, G key-value heads, D head size, P parts of a sequence, B blocks of the
cache, K tokens of a block, L blocks of a sequence.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

_PART_TOKENS, _MOST_PARTS = 1024, 16
"""Tokens of a part, unless a sequence can have more parts than this."""
_TILE = 128
"""Keys that a program takes at a time: as many as flash attention 3, for heads of 64 and 128."""
_LEAST_ROWS = 16
"""Queries of a tile: the least that a matrix product takes."""


def part_tokens(most_tokens: int) -> int:
    """Return how many tokens of a sequence one program attends to, where sequences have at most `most_tokens`."""
    return max(_PART_TOKENS, triton.next_power_of_2(triton.cdiv(most_tokens, _MOST_PARTS)))


def attend_to_cache(
    query_T_A_D: torch.Tensor,
    key_B_K_G_D: torch.Tensor,
    value_B_K_G_D: torch.Tensor,
    block_T_L: torch.Tensor,
    tokens_T: torch.Tensor,
    most_tokens: int,
    scale: float,
    output_T_A_D: torch.Tensor,
) -> None:
    """Write the attention of each query to the keys and values of its sequence; zeros, if it has none.

    Args:
        query_T_A_D: bf16 or fp16. The last dimension is contiguous, as in all of these.
        key_B_K_G_D: the cache.
        value_B_K_G_D: the cache, with the same strides.
        block_T_L: int32, the blocks of each sequence.
        tokens_T: int32, how many tokens of the sequence are in the cache.
        most_tokens: that any sequence may have. It decides how the work is divided.
        scale: of the scores.
        output_T_A_D: of the queries' type.
    """
    sequences, heads, size = query_T_A_D.shape
    groups = key_B_K_G_D.shape[2]
    each = heads // groups
    tokens = part_tokens(most_tokens)
    parts = triton.cdiv(most_tokens, tokens)
    partial, statistics = output_T_A_D, output_T_A_D  # of whole sequences there is neither
    if parts > 1:
        partial = query_T_A_D.new_empty((sequences, heads, parts, size), dtype=torch.float32)
        statistics = query_T_A_D.new_empty((sequences, heads, parts, 2), dtype=torch.float32)
    _attend[(groups, sequences, parts)](
        *(query_T_A_D, *query_T_A_D.stride()[:2], key_B_K_G_D, value_B_K_G_D, *key_B_K_G_D.stride()[:3]),
        *(block_T_L, block_T_L.stride(0), tokens_T, scale * math.log2(math.e)),
        *(output_T_A_D, *output_T_A_D.stride()[:2], partial, statistics),
        SIZE=size,
        EACH=each,
        PART=tokens,
        PARTS=parts,
        ROWS=max(_LEAST_ROWS, triton.next_power_of_2(each)),
        BLOCK=key_B_K_G_D.shape[1],
        TILE=_TILE,
        num_warps=8,
        num_stages=2,
    )
    if parts > 1:
        _add_parts[(heads, sequences)](
            *(tokens_T, partial, statistics, output_T_A_D, *output_T_A_D.stride()[:2]),
            SIZE=size,
            PART=tokens,
            PARTS=parts,
            PLACES=triton.next_power_of_2(parts),
            num_warps=1,
        )


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    queries,
    query_stride,
    query_head_stride,
    keys,
    values,
    block_stride,
    token_stride,
    head_stride,
    tables,
    table_stride,
    lengths,
    scale,
    outputs,
    output_stride,
    output_head_stride,
    partial,
    statistics,
    SIZE: tl.constexpr,
    EACH: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """Attend with a group's queries to a part of a sequence. `scale` is for powers of two."""
    group, sequence, part = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    length = tl.load(lengths + sequence)
    begin = part * PART
    if (begin < length) | (part == 0):
        end = tl.minimum(begin + PART, length)
        row, column, within = tl.arange(0, ROWS), tl.arange(0, SIZE), tl.arange(0, TILE)
        head = group * EACH + row
        places = sequence * query_stride + head[:, None] * query_head_stride + column[None, :]
        query = tl.load(queries + places, mask=row[:, None] < EACH, other=0.0)
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        sums = tl.zeros([ROWS, SIZE], tl.float32)
        tiles = tl.cdiv(end - begin, TILE)
        for done in range(tiles):
            token = begin + (tiles - 1 - done) * TILE + within
            there = token < end
            block = tl.load(tables + sequence * table_stride + token // BLOCK, mask=there, other=0).to(tl.int64)
            place = block * block_stride + (token % BLOCK) * token_stride + group * head_stride
            key = tl.load(keys + place[None, :] + column[:, None], mask=there[None, :], other=0.0)
            value = tl.load(values + place[:, None] + column[None, :], mask=there[:, None], other=0.0)
            score = tl.where(there[None, :], tl.dot(query, key) * scale, float("-inf"))
            higher = tl.maximum(top, tl.max(score, 1))
            before, weight = tl.exp2(top - higher), tl.exp2(score - higher[:, None])
            total = total * before + tl.sum(weight, 1)
            sums = sums * before[:, None] + tl.dot(weight.to(value.dtype), value)
            top = higher
        if (PARTS == 1) | (length <= PART):
            result = sums / tl.where(total > 0, total, 1.0)[:, None]
            places = sequence * output_stride + head[:, None] * output_head_stride + column[None, :]
            tl.store(outputs + places, result.to(outputs.dtype.element_ty), mask=row[:, None] < EACH)
        else:
            index = (sequence * tl.num_programs(0) * EACH + head) * PARTS + part
            tl.store(partial + index[:, None] * SIZE + column[None, :], sums, mask=row[:, None] < EACH)
            tl.store(statistics + 2 * index, top, mask=row < EACH)
            tl.store(statistics + 2 * index + 1, total, mask=row < EACH)


@triton.jit
def _add_parts(  # type: ignore[no-untyped-def]
    lengths,
    partial,
    statistics,
    outputs,
    output_stride,
    output_head_stride,
    SIZE: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    PLACES: tl.constexpr,
):
    """Add up what `_attend` found in a sequence's parts, of one head, if there is more than one part."""
    head, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    length = tl.load(lengths + sequence)
    if length > PART:
        part, column = tl.arange(0, PLACES), tl.arange(0, SIZE)
        there = part * PART < length
        index = (sequence * tl.num_programs(0) + head) * PARTS + part
        top = tl.load(statistics + 2 * index, mask=there, other=float("-inf"))
        share = tl.exp2(top - tl.max(top))
        total = tl.sum(tl.load(statistics + 2 * index + 1, mask=there, other=0.0) * share)
        sums = tl.load(partial + index[:, None] * SIZE + column[None, :], mask=there[:, None], other=0.0)
        result = tl.sum(sums * share[:, None], 0) / total
        places = sequence * output_stride + head * output_head_stride + column
        tl.store(outputs + places, result.to(outputs.dtype.element_ty))
