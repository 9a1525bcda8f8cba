"""Megatron's process groups, and those of context parallelism, of which Megatron knows nothing.

Megatron's own context parallelism needs Transformer Engine's attention, which has no shared prompts. To Megatron the
ranks that share tokens are data parallel: each gets a row of tokens. Neighbouring ranks share a model's weights; the
next ones, the tokens of samples.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from lorarl_trainer.backends.parallel import Parallel


def open_groups(provider: Any, context_ranks: int = 1) -> Parallel:
    """Make Megatron's groups as the finalized model provider wants them, unless they exist (collective).

    torch.distributed must be initialised. Of Megatron's data-parallel ranks, each `context_ranks` share tokens.
    """
    from megatron.core import parallel_state

    if not parallel_state.is_initialized():
        # Megatron's own random state plays no part: adapters are initialised in Hugging Face names, and dropout is
        # seeded at each step.
        provider.initialize_model_parallel(seed=0)
    tensor_size = parallel_state.get_tensor_model_parallel_world_size()
    copies = parallel_state.get_data_parallel_group()
    size, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    data, context = copies, None
    if context_ranks > 1:
        data, context = (
            dist.new_subgroups_by_enumeration(groups)[0]
            for groups in groups_within_copies(tensor_size, size, context_ranks)
        )
    experts = parallel_state.get_expert_model_parallel_group()
    return Parallel(
        tensor_group=parallel_state.get_tensor_model_parallel_group(),
        tensor_size=tensor_size,
        data_group=data,
        data_size=size // context_ranks,
        data_rank=rank // context_ranks,
        copies_group=copies,
        copies_size=size,
        copies_rank=rank,
        context_group=context,
        context_size=context_ranks,
        expert_group=experts,
        expert_size=parallel_state.get_expert_model_parallel_world_size(),
        expert_hosts=_on_hosts(experts),
        expert_copies=parallel_state.get_expert_data_parallel_group(),
        expert_data_size=parallel_state.get_expert_data_parallel_world_size(),
    )


def _on_hosts(group: Any) -> Any:
    """Return a group of the same ranks for tensors on the host (collective). It may be the group itself."""
    if dist.get_backend(group) == "gloo" or dist.get_world_size(group) == 1:
        return group
    groups: list[list[int]] = [[]] * dist.get_world_size()
    dist.all_gather_object(groups, dist.get_process_group_ranks(group))
    of_ranks = sorted({tuple(ranks) for ranks in groups})
    return dist.new_subgroups_by_enumeration([list(ranks) for ranks in of_ranks], backend="gloo")[0]


def groups_within_copies(tensor_size: int, copies: int, context_size: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return all ranks in groups that share batches of samples, and in groups that share the tokens of samples.

    Tensor-parallel ranks are neighbours.
    """
    data, context = [], []
    for tensor_rank in range(tensor_size):
        ranks = [tensor_rank + tensor_size * copy for copy in range(copies)]
        data += [ranks[first::context_size] for first in range(context_size)]
        context += [ranks[first : first + context_size] for first in range(0, copies, context_size)]
    return data, context
