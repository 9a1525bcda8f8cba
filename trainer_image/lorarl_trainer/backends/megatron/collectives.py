"""What the ranks of a group send each other: rows of matrices, without autograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """Ranks that share the rows of matrices, as many each, in their order."""

    group: Any
    size: int
    rank: int

    @classmethod
    def of(cls, group: Any) -> Ranks:
        """Return the ranks of a group that this process belongs to."""
        return cls(group, dist.get_world_size(group), dist.get_rank(group))

    def gather(self, share: torch.Tensor) -> torch.Tensor:
        """Return the rows of all ranks, given this one's (collective). Alone, they are the tensor itself."""
        if self.size == 1:
            return share
        whole = share.new_empty(self.size * share.shape[0], *share.shape[1:])
        dist.all_gather_into_tensor(whole, share.contiguous(), group=self.group)
        return whole

    def scatter_sum(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows of the sum of all ranks' matrices (collective). Alone, it is the tensor itself."""
        if self.size == 1:
            return whole
        share = whole.new_empty(whole.shape[0] // self.size, *whole.shape[1:])
        dist.reduce_scatter_tensor(share, whole.contiguous(), group=self.group)
        return share
