"""The state space of Mamba-2 in chunks, in plain PyTorch, for trainer and engine.

It is the scan of T. Dao and A. Gu, "Transformers are SSMs" (arXiv:2405.21060), section 6. Transformers' own in torch
makes a product of five dimensions of each chunk: for one token of Granite 4.0 H Micro it has 8 MB. Here each product
is a matrix product, over all heads that share an input and an output matrix.

Shape suffixes: B rows, S tokens, G groups of R heads, P values of a head, N values of its state for each of those, C
chunks of L tokens.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad, softplus

_CHUNK = 64


def step_sizes(raw: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return how long a step each token is to each head, in fp32, [..., heads]."""
    return softplus(raw.float() + bias.float())


def scan(
    values: torch.Tensor,
    steps: torch.Tensor,
    decay: torch.Tensor,
    writes: torch.Tensor,
    reads: torch.Tensor,
    skip: torch.Tensor,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the tokens of sequences read, [B, S, heads, P], and the state after the last one; both in fp32.

    Args:
        values: what a token writes, [B, S, heads, P].
        steps: see `step_sizes`, [B, S, heads].
        decay: the logarithm of how much of its state a head keeps in a step of 1, [heads].
        writes: how a token writes into each state of its group, [B, S, G, N].
        reads: how it reads them, likewise.
        skip: how much of its own values a token reads besides, [heads].
        state: of each sequence before its first token, [B, heads, P, N]; None for nothing.
    """
    (rows, length, _, size), groups = values.shape, writes.shape[2]
    by_head = values.float()
    chunk = min(_CHUNK, length)
    written = _in_chunks((by_head * steps[..., None]).unflatten(2, (groups, -1)), chunk)  # [B, C, G, L, R, P]
    left = _in_chunks((steps * decay).unflatten(2, (groups, -1)), chunk).cumsum(3)  # [B, C, G, L, R]
    write, read = _in_chunks(writes.float(), chunk), _in_chunks(reads.float(), chunk)  # [B, C, G, L, N]
    # Of what a token wrote, this much is left at a later one of its chunk.
    of_head = left.transpose(3, 4)
    later = torch.full((chunk, chunk), -torch.inf, device=left.device).triu(1)
    between = (of_head[..., :, None] - of_head[..., None, :] + later).exp()  # [B, C, G, R, L, L]
    seen = (read @ write.transpose(3, 4))[:, :, :, None] * between
    within = (seen @ written.transpose(3, 4)).transpose(3, 4)
    kept = written * (left[:, :, :, -1:] - left).exp()[..., None]
    new = (write.transpose(3, 4) @ kept.flatten(4)).unflatten(-1, (-1, size))  # [B, C, G, N, R, P]
    before = new.new_zeros(rows, groups, *new.shape[3:]) if state is None else _by_group(state, groups)
    states, last = _by_chunk(new, left[:, :, :, -1].exp(), before)
    across = (read @ states.flatten(4)).unflatten(-1, (-1, size)) * left.exp()[..., None]
    outputs = (within + across).transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, :length]
    return outputs + by_head * skip.float()[:, None], last.permute(0, 1, 3, 4, 2).flatten(1, 2)


def _by_chunk(new: torch.Tensor, leaves: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the states before each chunk, [B, C, G, N, R, P], and after the last one, [B, G, N, R, P].

    Only this takes one chunk after the other. All are taken apart, and put together, at once: the gradient of a single
    slice is a whole tensor.

    Args:
        new: what each chunk writes into an empty state, [B, C, G, N, R, P].
        leaves: how much of a state it leaves, [B, C, G, R].
        state: before the first one.
    """
    states = []
    for new_1, leaves_1 in zip(new.unbind(1), leaves[:, :, :, None, :, None].unbind(1), strict=True):
        states.append(state)
        state = torch.addcmul(new_1, state, leaves_1)
    return torch.stack(states, dim=1), state


def _by_group(state: torch.Tensor, groups: int) -> torch.Tensor:
    """Return a state of heads, [B, heads, P, N], as [B, G, N, R, P]."""
    return state.float().unflatten(1, (groups, -1)).permute(0, 1, 4, 2, 3)


def _in_chunks(tensor_B_S_G_X: torch.Tensor, chunk: int) -> torch.Tensor:
    """Return it as [B, C, G, L, ...], padded with zeros, which write nothing and take no step."""
    if missing := -tensor_B_S_G_X.shape[1] % chunk:
        tensor_B_S_G_X = pad(tensor_B_S_G_X, (0, 0) * (tensor_B_S_G_X.dim() - 2) + (0, missing))
    return tensor_B_S_G_X.unflatten(1, (-1, chunk)).transpose(2, 3)
