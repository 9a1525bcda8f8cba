"""Two Triton kernels that draw a token from each row of logits and tell its log-probability: the logits are read once.

A sampler that adds noise to every logit makes a random number for each of them, and reads the logits again for their log-softmax. Here a
token is drawn by its share of the sum, in two stages: a block of columns by the blocks' sums, then a column within the block. Each has a
random number of its own, so that the many improbable tokens of a large vocabulary are told apart as well as the probable ones.

Shape suffixes: N rows, V vocabulary, B blocks of columns, R seats of requests.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_COLUMNS = 4096
"""Columns of a block."""


def draw(
    logits_N_V: torch.Tensor, seat_N: torch.Tensor, position_N: torch.Tensor, seed_R: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token a row; return them [N] (int64) and their log-probabilities [N] (float32).

    Args:
        logits_N_V: one row a request, any floating type, neighbours in a row next to each other.
        seat_N: where each row's request has its seed.
        position_N: of the token before, in its sequence: with the seed it decides the draw, whatever else is in the batch.
        seed_R: int64.
        temperature: what logits are divided by; 0 takes the largest logit.
    """
    rows, columns = logits_N_V.shape
    blocks = triton.cdiv(columns, _COLUMNS)
    tokens_N = torch.empty(rows, dtype=torch.int64, device=logits_N_V.device)
    logprobs_N, sums = (
        logits_N_V.new_empty(rows, dtype=torch.float32),
        logits_N_V.new_empty((2, rows, blocks), dtype=torch.float32),
    )
    scale = 1 / temperature if temperature else 1.0  # greedily, logits stay as they are
    _sum_blocks[(rows, blocks)](logits_N_V, logits_N_V.stride(0), scale, *sums, columns, BLOCK=_COLUMNS)
    _draw[(rows,)](
        *(
            logits_N_V,
            logits_N_V.stride(0),
            scale,
            seat_N,
            position_N,
            seed_R,
            *sums,
            tokens_N,
            logprobs_N,
            columns,
            blocks,
        ),
        GREEDY=temperature == 0,
        BLOCK=_COLUMNS,
        BLOCKS=triton.next_power_of_2(blocks),
    )
    return tokens_N, logprobs_N


@triton.jit
def _sum_blocks(logits, stride, scale, largest, sums, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write a block's largest z = scale * logit, and its sum of exp(z - largest)."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(logits + row * stride + column, mask=column < columns, other=float("-inf")).to(tl.float32) * scale
    top = tl.max(z)
    place = row * tl.num_programs(1) + block
    tl.store(largest + place, top)
    # Where all of a block is impossible, so that `top` is -inf too, the sum is 0.
    tl.store(sums + place, tl.sum(tl.where(z == float("-inf"), 0.0, tl.exp(z - top))))


@triton.jit
def _chosen(weights, index, uniform):  # type: ignore[no-untyped-def]
    """Return an index by its share of the weights, never one without any: `uniform` is from 0 up to, but not including, 1."""
    before = tl.sum((tl.cumsum(weights) <= uniform * tl.sum(weights)).to(tl.int32))
    # Sums in another order may round to a little less.
    return tl.minimum(before, tl.max(tl.where(weights > 0, index, 0)))


@triton.jit
def _draw(  # type: ignore[no-untyped-def]
    logits,
    stride,
    scale,
    seats,
    positions,
    seeds,
    largest,
    sums,
    tokens,
    logprobs,
    columns,
    blocks,
    GREEDY: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    seed, position = tl.load(seeds + tl.load(seats + row)), tl.load(positions + row)
    index = tl.arange(0, BLOCKS)
    tops = tl.load(largest + row * blocks + index, mask=index < blocks, other=float("-inf"))
    top = tl.max(tops)
    weights = tl.load(sums + row * blocks + index, mask=index < blocks, other=0.0) * tl.exp(tops - top)
    block = tl.argmax(tops, 0) if GREEDY else _chosen(weights, index, tl.rand(seed, 2 * position))
    within = tl.arange(0, BLOCK)
    column = block * BLOCK + within
    z = tl.load(logits + row * stride + column, mask=column < columns, other=float("-inf")).to(tl.float32) * scale
    place = tl.argmax(z, 0) if GREEDY else _chosen(tl.exp(z - tl.max(z)), within, tl.rand(seed, 2 * position + 1))
    tl.store(tokens + row, (block * BLOCK + place).to(tl.int64))
    tl.store(logprobs + row, tl.sum(tl.where(within == place, z, 0.0)) - top - tl.log(tl.sum(weights)))
