"""The training state of a checkpoint, which the first worker brings to the others."""

from __future__ import annotations

from collections.abc import Buffer, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from lorarl_trainer.devices.transfer import bytes_of, from_host, to_host


@dataclass(frozen=True)
class State:
    """The training state of a checkpoint.

    Attributes:
        files: safetensors files with the adapter's fp32 masters and its optimizer's moments, and the critic's.
    """

    files: Sequence[Buffer]
    updates: int
    critic_updates: int = 0


def shared(state: State | None, device: torch.device) -> State:
    """Return the first worker's state on every worker (collective). The others pass None.

    The files travel from device to device, one at a time. Ray would copy all of them to and from its object store.
    """
    if dist.get_world_size() == 1:
        assert state is not None
        return state
    sizes = [len(bytes_of(file)) for file in state.files] if state else []
    about = [(state.updates, state.critic_updates, sizes) if state else (0, 0, sizes)]
    dist.broadcast_object_list(about, src=0, device=device)
    updates, critic_updates, sizes = about[0]
    files: list[Buffer] = []
    for index, size in enumerate(sizes):
        if state is None:
            whole = torch.empty(size, dtype=torch.uint8, device=device)
        else:
            whole = from_host([bytes_of(state.files[index])], device)
        dist.broadcast(whole, src=0)
        files.append(memoryview(to_host(whole).numpy()) if state is None else state.files[index])
        del whole  # before the next one is there
    return State(files, updates, critic_updates)
