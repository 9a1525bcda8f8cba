"""The trainer's half of topP, topK and minP: the softmax is over as many tokens as the engine's was.

All three keep the most probable tokens, so the engine hands over their number alone, and the trainer takes as many of
its own largest logits. Engine and trainer round differently. If each applied a threshold, a token at the border might
be in one's softmax and not in the other's, and the log-probabilities would jump. With the number given, rounding can
only exchange two tokens whose logits are nearly equal, so log-probabilities differ by no more than logits do.

Shape suffixes: C tokens of a chunk, V vocabulary of this tensor-parallel rank, K the largest of them, R ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

_IMPOSSIBLE = -1e30
"""A logit whose probability is zero, also after the division by the lowest temperature.

It is finite for the ranks that keep none of their tokens: there, the softmax subtracts the largest logit from itself.
"""


def keep_largest(logits_C_V: torch.Tensor, kept_C: torch.Tensor, targets_C: torch.Tensor, group: Any) -> None:
    """Make all but the `kept_C` largest logits of each row impossible, in place.

    The target was drawn, so it always stays. If rounding puts it behind the others, it takes the last one's place.

    Args:
        logits_C_V: this rank's logits.
        kept_C: how many of all ranks' logits stay, at least 1; more than there are keep all.
        targets_C: token ids that count from this rank's first token; those of other ranks are out of range.
        group: the tensor-parallel ranks; None for a single one.
    """
    largest_C_K = _largest(logits_C_V, int(kept_C.max()), group)
    last_C = largest_C_K.gather(1, (kept_C - 1).clamp(max=largest_C_K.shape[1] - 1)[:, None])[:, 0]
    mine_C, column_C = place(targets_C, logits_C_V.shape[1])
    target_C = logits_C_V.gather(1, column_C[:, None])[:, 0].where(mine_C, _IMPOSSIBLE)
    own_target_C = target_C
    if group is not None:
        target_C = target_C.clone()
        dist.all_reduce(target_C, dist.ReduceOp.MAX, group=group)
    # The smallest logit that stays: without the last one, if the target takes its place.
    bound_C = last_C.where(target_C >= last_C, torch.nextafter(last_C, torch.full_like(last_C, float("inf"))))
    logits_C_V.masked_fill_(logits_C_V < bound_C[:, None], _IMPOSSIBLE)
    rows = mine_C.nonzero()[:, 0]
    logits_C_V[rows, column_C[rows]] = own_target_C[rows]


def place(targets_C: torch.Tensor, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which targets are in this rank's part of the vocabulary, and their columns there (0 for others)."""
    mine_C = (targets_C >= 0) & (targets_C < vocabulary)
    return mine_C, targets_C.where(mine_C, 0)


def _largest(logits_C_V: torch.Tensor, most: int, group: Any) -> torch.Tensor:
    """Return the `most` largest logits of each row over all ranks in descending order, or all if there are fewer."""
    largest_C_K = logits_C_V.topk(min(most, logits_C_V.shape[1])).values
    if group is None:
        return largest_C_K
    padded_C_K = logits_C_V.new_full((len(logits_C_V), most), _IMPOSSIBLE)
    padded_C_K[:, : largest_C_K.shape[1]] = largest_C_K
    parts = [torch.empty_like(padded_C_K) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, padded_C_K, group=group)
    return torch.cat(parts, 1).topk(most).values
