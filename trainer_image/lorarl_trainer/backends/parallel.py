"""The ranks that a model is split over, and those that share its samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Parallel:
    """The ranks that share a layer's weights (tensor) and those that share a batch's samples (data).

    Attributes:
        tensor_group, data_group: torch.distributed process groups.
        tensor_size, data_size: ranks in each.
        data_rank: this rank's place in its data group.
    """

    tensor_group: Any
    tensor_size: int
    data_group: Any
    data_size: int
    data_rank: int
