"""The ranks that a model is split over, and those that share its samples or their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Parallel:
    """The ranks that share a layer's weights (tensor), a batch's samples (data), or the tokens of samples (context).

    Attributes:
        tensor_group, data_group: torch.distributed process groups.
        tensor_size, data_size: ranks in each.
        data_rank: this rank's place in its data group.
        copies_group: the ranks with the same part of the adapter, whose gradients are added up: those of data and of
            context together.
        copies_size: ranks in it.
        copies_rank: this rank's place in it.
        context_group: the ranks that share the tokens of the same samples; None if each sample is on one of them.
        context_size: ranks in it.
    """

    tensor_group: Any
    tensor_size: int
    data_group: Any
    data_size: int
    data_rank: int
    copies_group: Any
    copies_size: int
    copies_rank: int
    context_group: Any = None
    context_size: int = 1

    @property
    def first_copy(self) -> bool:
        """Whether this rank is the first of those with the same part of the adapter."""
        return self.copies_rank == 0
