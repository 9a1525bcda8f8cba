"""The gated delta rule in chunks, as Transformers has it in torch, with a solve in the place of a loop over rows.

Transformers inverts a triangular matrix of each chunk row by row, and autograd keeps a copy of it for each row: a token
kept five times as much, and a GPU started some hundred kernels for each layer.

The rule is that of S. Yang et al., "Gated Delta Networks" (arXiv:2412.06464), section 3.3 and appendix A.
Shape suffixes: B rows, S tokens, E heads, C chunks of L tokens, K and V the sizes of a head's keys and values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad

_CHUNK = 64


def chunk_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return the rule's output, [B, S, E, V], of sequences from their first token on.

    Its arguments and what it returns are those of Transformers' `torch_chunk_gated_delta_rule`.

    Args:
        query: [B, S, E, K].
        key: likewise.
        value: [B, S, E, V].
        g: the logarithm of how much of the state each token leaves, [B, S, E].
        beta: how much of it each token overwrites, [B, S, E].
        use_qk_l2norm_in_kernel: whether queries and keys are normalised here.
    """
    from transformers.models.qwen3_5.modeling_qwen3_5 import l2norm

    kind, length = query.dtype, query.shape[1]
    if use_qk_l2norm_in_kernel:
        query, key = l2norm(query), l2norm(key)
    query, key, value = (_in_chunks(tensor) for tensor in (query, key, value))
    beta_1, left_1 = _in_chunks(beta[..., None]), _in_chunks(g[..., None]).cumsum(-2)
    left = left_1.exp()
    # Of what a token wrote, this much is left at a later one of its chunk.
    later = torch.full((_CHUNK, _CHUNK), -torch.inf, device=left_1.device).triu(1)
    between = (left_1 - left_1.transpose(-1, -2) + later).exp()
    overwriting = key * beta_1
    wanted = torch.cat([value * beta_1, overwriting * left], dim=-1)
    # Of this matrix, only what is below the diagonal is read.
    lower = overwriting @ key.transpose(-1, -2) * between
    solved = torch.linalg.solve_triangular(lower, wanted, upper=False, unitriangular=True)
    written, removed = solved.split([value.shape[-1], key.shape[-1]], dim=-1)
    query = query * query.shape[-1] ** -0.5
    within, across = query @ key.transpose(-1, -2) * between, query * left
    kept, leaves = key * (left_1[..., -1:, :] - left_1).exp(), left[..., -1:, :]
    states, new = _by_chunk(written, removed, kept.transpose(-1, -2), leaves)
    outputs = across @ states + within @ new
    return outputs.flatten(2, 3)[:, :, :length].transpose(1, 2).to(kind), None


def _by_chunk(
    written: torch.Tensor, removed: torch.Tensor, kept: torch.Tensor, leaves: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the state before each chunk, [B, E, C, K, V], and what its tokens write, [B, E, C, L, V].

    Only this takes one chunk after the other. A GPU waits for the CPU that starts its kernels, so each chunk has three.
    All chunks are taken apart, and put together, at once: the gradient of a single slice is a whole tensor.

    Args:
        written: what a chunk's tokens would write into an empty state, [B, E, C, L, V].
        removed: what they take of the state before them, by its keys, [B, E, C, L, K].
        kept: how they write into the state, [B, E, C, K, L].
        leaves: how much of a state a chunk leaves, [B, E, C, 1, 1].
    """
    of_rows = [tensor.flatten(0, 1).unbind(1) for tensor in (written, removed, kept, leaves)]
    rows, heads, _, _, values = written.shape
    state = written.new_zeros(rows * heads, removed.shape[-1], values)
    states, made = [], []
    for written_1, removed_1, kept_1, leaves_1 in zip(*of_rows, strict=True):
        states.append(state)
        made.append(torch.baddbmm(written_1, removed_1, state, alpha=-1))
        state = torch.baddbmm(state * leaves_1, kept_1, made[-1])
    by_head = (rows, heads)
    return torch.stack(states, dim=1).unflatten(0, by_head), torch.stack(made, dim=1).unflatten(0, by_head)


def _in_chunks(tensor_B_S_E_X: torch.Tensor) -> torch.Tensor:
    """Return it in fp32 as [B, E, C, L, X], padded with zeros, which write nothing."""
    by_head = tensor_B_S_E_X.transpose(1, 2).float()
    if missing := -by_head.shape[2] % _CHUNK:
        by_head = pad(by_head, (0, 0, 0, missing))
    return by_head.unflatten(2, (-1, _CHUNK))
