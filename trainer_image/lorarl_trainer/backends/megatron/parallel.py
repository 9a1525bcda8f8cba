"""Megatron's process groups."""

from __future__ import annotations

from typing import Any

from lorarl_trainer.backends.parallel import Parallel


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
        expert_group=parallel_state.get_expert_model_parallel_group(),
        expert_size=parallel_state.get_expert_model_parallel_world_size(),
        expert_copies=parallel_state.get_expert_data_parallel_group(),
        expert_data_size=parallel_state.get_expert_data_parallel_world_size(),
    )
