"""Who shares what: Megatron's process groups and this rank's place in them."""

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


def open_groups(provider: Any) -> Parallel:
    """Make Megatron's groups as the finalized model provider wants them, unless they exist (collective).

    torch.distributed must be initialised.
    """
    from megatron.core import parallel_state

    if not parallel_state.is_initialized():
        # Megatron's own random state plays no part: adapters are initialised in Hugging Face names, and dropout is
        # seeded at each step.
        provider.initialize_model_parallel(seed=0)
    return Parallel(
        tensor_group=parallel_state.get_tensor_model_parallel_group(),
        tensor_size=parallel_state.get_tensor_model_parallel_world_size(),
        data_group=parallel_state.get_data_parallel_group(),
        data_size=parallel_state.get_data_parallel_world_size(),
        data_rank=parallel_state.get_data_parallel_rank(),
    )
