"""The ranks that a model is split over, and those that share its samples or their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Part(IntEnum):
    """Which ranks have other elements of a parameter. A model's parameters are in this order."""

    OUTER = 0
    """None: the experts of a layer share it, also those of other ranks."""
    EXPERTS = 1
    """Those that share a layer's experts."""
    REST = 2
    """Those that share a layer's other weights. Experts are part of the rest on ranks that share neither."""


@dataclass(frozen=True)
class Parallel:
    """The ranks that share a layer's weights (tensor), a batch's samples (data), or the tokens of samples (context).

    Ranks of either kind may share a layer's experts: each has some of them, whole, and computes these for the tokens of
    all. One of the two groups, of experts and of the other weights, holds the other.

    Attributes:
        tensor_group, data_group: torch.distributed process groups.
        copies_group: the ranks with the same part of the adapter, experts aside, whose gradients are added up: those of
            data and of context together.
        context_group: the ranks that share the tokens of the same samples; None if each sample is on one of them.
        expert_group, expert_size: ranks that share a layer's experts; 1: each rank has all of them.
        expert_hosts: the ranks of `expert_group`, for tensors on the host.
        expert_copies, expert_data_size: ranks that have the same experts, and sum their gradients.
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
    expert_group: Any = None
    expert_size: int = 1
    expert_hosts: Any = None
    expert_copies: Any = None
    expert_data_size: int = 1

    @property
    def model_group(self) -> Any:
        """The ranks that one copy of the model is split over."""
        return self.expert_group if self.expert_size > self.tensor_size else self.tensor_group

    @property
    def first_copy(self) -> bool:
        """Whether this rank has a part of the same copy of the model as the first rank."""
        return self.copies_rank * self.tensor_size < max(self.expert_size, self.tensor_size)

    @property
    def splits_experts(self) -> bool:
        """Whether experts belong to other ranks than the rest of a layer: no tensor parallelism splits them."""
        return max(self.expert_size, self.tensor_size) > 1
