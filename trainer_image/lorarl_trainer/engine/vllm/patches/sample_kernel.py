"""Two Triton kernels that draw a token from each row of logits, with its log-probability. The logits are read once.

A sampler that adds noise to every logit makes a random number for each, and reads the logits again for their
log-softmax. Here a token is drawn by its share of the sum, in two stages: a block of columns by the blocks' sums, then
a column within the block. Each stage has its own random number, so the many improbable tokens of a large vocabulary are
resolved as well as the probable ones.

Tensor-parallel ranks have a part of the columns each. They exchange the sums of their blocks, so all choose the same
block, and the rank that has it draws the column. 7B's logits of 512 rows are 311 MB, and their sums 0.2 MB.

On a CPU `cpu_sampler.py` is used instead, so there is no plain twin: the tests compare these kernels with PyTorch.

Shape suffixes: N rows of logits, V columns here, B blocks of columns, K ranks, R rows for requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_COLUMNS = 4096
"""Columns of a block."""


@dataclass(frozen=True)
class Ranks:
    """The ranks that have the vocabulary's columns, in their order.

    Attributes:
        rank: this one's place.
        width: columns of each. The last ones may be padding, which is not passed to `draw`.
        stack: returns a tensor of all ranks from this one's, [K, ...] from [...] (collective).
    """

    rank: int
    width: int
    stack: Callable[[torch.Tensor], torch.Tensor]


def draw(
    logits_N_V: torch.Tensor,
    request_N: torch.Tensor,
    position_N: torch.Tensor,
    seed_R: torch.Tensor,
    temperature: float,
    ranks: Ranks | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token per row; return the tokens [N] (int64) and their log-probabilities [N] (float32).

    With ranks it is collective, and all return the same.

    Args:
        logits_N_V: one row per request, any floating type, neighbours in a row next to each other.
        request_N: the row of `seed_R` that belongs to each row's request.
        position_N: of the token before, in its sequence. It and the seed decide the draw, whatever else is in a batch.
        seed_R: int64.
        temperature: what logits are divided by; 0 takes the largest logit.
        ranks: where each has a part of the columns; None if all are here.
    """
    rows, columns = logits_N_V.shape
    here = triton.cdiv(ranks.width if ranks else columns, _COLUMNS)
    tokens_N = torch.empty(rows, dtype=torch.int64, device=logits_N_V.device)
    logprobs_N = logits_N_V.new_empty(rows, dtype=torch.float32)
    sums_2_N_B = logits_N_V.new_empty((2, rows, here), dtype=torch.float32)
    scale = 1 / temperature if temperature else 1.0  # greedily, logits stay as they are
    _sum_blocks[(rows, here)](logits_N_V, logits_N_V.stride(0), scale, *sums_2_N_B, columns, BLOCK=_COLUMNS)
    if ranks:
        sums_2_N_B = ranks.stack(sums_2_N_B).permute(1, 2, 0, 3).contiguous().view(2, rows, -1)
    blocks = sums_2_N_B.shape[2]
    first_block, first_column = (ranks.rank * here, ranks.rank * ranks.width) if ranks else (0, 0)
    _draw[(rows,)](
        *(logits_N_V, logits_N_V.stride(0), scale, request_N, position_N, seed_R),
        *(*sums_2_N_B, tokens_N, logprobs_N, columns, blocks, first_block, here, first_column),
        GREEDY=temperature == 0,
        BLOCK=_COLUMNS,
        BLOCKS=triton.next_power_of_2(blocks),
    )
    if ranks:  # all but one have zeros
        drawn_2_N = ranks.stack(torch.stack((tokens_N.double(), logprobs_N.double()))).sum(0)
        return drawn_2_N[0].long(), drawn_2_N[1].float()
    return tokens_N, logprobs_N


@triton.jit
def _sum_blocks(logits, stride, scale, largest, sums, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write a block's largest z = scale * logit, and its sum of exp(z - largest)."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(logits + row * stride + column, mask=column < columns, other=float("-inf")).to(tl.float32) * scale
    top = tl.max(z)
    index = row * tl.num_programs(1) + block
    tl.store(largest + index, top)
    # If all of a block is impossible, `top` is -inf too and the sum is 0.
    tl.store(sums + index, tl.sum(tl.where(z == float("-inf"), 0.0, tl.exp(z - top))))


@triton.jit
def _chosen(weights, index, uniform):  # type: ignore[no-untyped-def]
    """Return an index by its share of the weights, never one with weight 0. `uniform` is in [0, 1)."""
    # Threads add up in other orders. So the sums may rise by rounding where a weight is 0, and the last of them may be
    # less than the whole.
    last = tl.max(tl.where(weights > 0, index, 0))
    beyond = (weights > 0) & (tl.cumsum(weights) > uniform * tl.sum(weights))
    return tl.min(tl.where(beyond, index, last))


@triton.jit
def _draw(  # type: ignore[no-untyped-def]
    logits,
    stride,
    scale,
    requests,
    positions,
    seeds,
    largest,
    sums,
    tokens,
    logprobs,
    columns,
    blocks,
    first_block,
    here,
    first_column,
    GREEDY: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Write a row's token and log-probability, or zeros if its block is not one of the `here` from `first_block` on."""
    row = tl.program_id(0).to(tl.int64)
    seed, position = tl.load(seeds + tl.load(requests + row)), tl.load(positions + row)
    index = tl.arange(0, BLOCKS)
    tops = tl.load(largest + row * blocks + index, mask=index < blocks, other=float("-inf"))
    top = tl.max(tops)
    weights = tl.load(sums + row * blocks + index, mask=index < blocks, other=0.0) * tl.exp(tops - top)
    block = tl.argmax(tops, 0) if GREEDY else _chosen(weights, index, tl.rand(seed, 2 * position))
    block -= first_block
    is_here = (block >= 0) & (block < here)
    within = tl.arange(0, BLOCK)
    column = block * BLOCK + within
    there = is_here & (column < columns)
    z = tl.load(logits + row * stride + column, mask=there, other=float("-inf")).to(tl.float32) * scale
    chosen = tl.argmax(z, 0) if GREEDY else _chosen(tl.exp(z - tl.max(z)), within, tl.rand(seed, 2 * position + 1))
    logprob = tl.sum(tl.where(within == chosen, z, 0.0)) - top - tl.log(tl.sum(weights))
    tl.store(tokens + row, tl.where(is_here, first_column + block * BLOCK + chosen, 0).to(tl.int64))
    tl.store(logprobs + row, tl.where(is_here, logprob, 0.0))
