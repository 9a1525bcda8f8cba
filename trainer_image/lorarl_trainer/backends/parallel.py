"""The ranks that a model is split over, and those that share its samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Parallel:
    """The ranks that share a layer's weights (tensor) and those that share a batch's samples (data).

    Some of those that share a batch may share a layer's experts, too: each has some of them, and computes these for the
    tokens of all.

    Attributes:
        tensor_group, data_group: torch.distributed process groups.
        tensor_size, data_size: ranks in each.
        data_rank: this rank's place in its data group.
        expert_group, expert_size: ranks that share a layer's experts; 1: each rank has all of them.
        expert_copies, expert_data_size: ranks that have the same experts, which then sum their gradients.
    """

    tensor_group: Any
    tensor_size: int
    data_group: Any
    data_size: int
    data_rank: int
    expert_group: Any = None
    expert_size: int = 1
    expert_copies: Any = None
    expert_data_size: int = 1

    @property
    def model_group(self) -> Any:
        """The ranks that one copy of the model is split over. A model is never split in both ways."""
        return self.expert_group if self.expert_size > 1 else self.tensor_group

    @property
    def first_copy(self) -> bool:
        """Whether this rank has a part of the same copy of the model as the first rank."""
        return self.data_rank < self.expert_size
