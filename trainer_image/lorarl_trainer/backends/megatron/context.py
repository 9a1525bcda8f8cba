"""What ranks that share the tokens of samples send each other: keys and values, and what is computed of each token.

See `samples.context` for who computes what.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from lorarl_trainer.backends.megatron.collectives import Ranks
from lorarl_trainer.backends.micro_batch import MicroBatch, TrainedShare
from lorarl_trainer.kernels.gather import Gather
from lorarl_trainer.kernels.packed import Segments


class SharedKeys(Gather):
    """Takes the keys of a rank's segments out of all ranks' tokens, of which each rank has its own."""

    def __init__(self, of_all: Gather, ranks: Ranks) -> None:
        """`of_all` takes them out of the rows of all `ranks`, one rank's after the other's."""
        self.identity, self.index, self.order, self.ends = False, of_all.index, of_all.order, of_all.ends
        self._of_all, self._ranks = of_all, ranks

    def take(self, own: torch.Tensor) -> torch.Tensor:
        """Return the keys of this rank's segments, given those of its tokens (collective)."""
        return self._of_all.take(self._ranks.gather(own))

    def summed(self, taken: torch.Tensor) -> torch.Tensor:
        """Return for each of this rank's tokens the sum over all ranks of what was taken from it (collective)."""
        return self._ranks.scatter_sum(self._of_all.summed(taken))


def sharing_keys(segments: Segments, ranks: Ranks) -> Segments:
    """Return a rank's segments whose keys come from all ranks."""
    return replace(segments, keys=SharedKeys(segments.keys, ranks))


def of_all_ranks(own_M: torch.Tensor, batch: MicroBatch, ranks: Ranks) -> torch.Tensor:
    """Return a number of each trained token, [N], given those of this rank's, [M] (collective).

    All ranks make the same of them, so that each has its own gradient.
    """
    assert batch.share is not None, "the ranks share its tokens"
    found_N: torch.Tensor = _OfAllRanks.apply(own_M, batch.share, ranks)
    return found_N


class _OfAllRanks(torch.autograd.Function):
    """See `of_all_ranks`."""

    @staticmethod
    def forward(ctx: Any, own_M: torch.Tensor, share: TrainedShare, ranks: Ranks) -> torch.Tensor:
        ctx.trained = share.trained
        found_N = own_M.new_zeros(share.of_all).index_copy_(0, share.trained, own_M)
        dist.all_reduce(found_N, group=ranks.group)  # zeros are added to each, so it is exact
        return found_N

    @staticmethod
    def backward(ctx: Any, by_found_N: torch.Tensor) -> Any:
        return by_found_N.index_select(0, ctx.trained), None, None
