"""How a new adapter version reaches vLLM. Two transports, one interface, the same tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import torch
import torch.distributed as dist

from lorarl_trainer.engine.sync.copy_plan import CopyPlan
from lorarl_trainer.engine.vllm.adapter_slots import AdapterSlot
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.adapter import Adapter
from lorarl_trainer.lora.blocks import Block, Copy, copies
from lorarl_trainer.lora.served_files import write_version

_SHARED_MEMORY = Path("/dev/shm")


class AdapterSync(Protocol):
    """Brings the trainer's adapter to the engine as a version, and drops the version before."""

    def push(self, version: int) -> None:
        """Let the engine generate with the adapter as `version` (collective)."""


def make_sync(transport: Literal["tensor", "disk"], slot: AdapterSlot, adapter: Adapter) -> AdapterSync:
    """Return the transport that `rollout.adapterSync` names (collective)."""
    return TensorSync(slot, adapter) if transport == "tensor" else DiskSync(slot, adapter)


class TensorSync:
    """Within the process, from the trainer's parameters to vLLM's buffers: no files, nothing on the host.

    The plan is made once: which part of which parameter goes to which part of which buffer. If ranks share a model, by
    layers or by experts, each first gets its peers' parts: they are a thousandth of the model.

    Attributes:
        plan: the copies of one sync.
    """

    def __init__(self, slot: AdapterSlot, adapter: Adapter) -> None:
        """Make the plan (collective).

        Raises:
            InputError: vLLM keeps the adapter in a way that no plan is known for.
        """
        self._slot = slot
        self._peers = Peers(adapter) if dist.get_world_size(adapter.group) > 1 else None
        try:
            self.plan = plan_copies(slot, adapter, self._peers)
        except ValueError as error:
            raise InputError(
                "spec.rollout.adapterSync",
                "tensor",
                f"disk for this model, since {error}",
                "Set spec.rollout.adapterSync: disk.",
            ) from error

    def push(self, version: int) -> None:
        if self._peers:
            self._peers.exchange()
        self.plan.run()
        self._slot.rename(version)


class Peers:
    """The adapter parameters of all ranks that share a model, gathered on each."""

    def __init__(self, adapter: Adapter) -> None:
        """Make room for them (collective)."""
        parameters, self._group = [parameter.detach() for parameter in adapter.parameters], adapter.group
        ranks, own = dist.get_process_group_ranks(self._group), parameters[0]
        # Ranks that share experts may have adapters on more or fewer of them.
        shapes: list[list[torch.Size]] = [[] for _ in ranks]
        dist.all_gather_object(shapes, [parameter.shape for parameter in parameters], group=self._group)
        sizes = [[shape.numel() for shape in of_rank] for of_rank in shapes]
        self._flat = torch.empty(len(ranks), max(map(sum, sizes)), dtype=own.dtype, device=own.device)
        self.parameters: dict[int, Sequence[torch.Tensor]] = {}
        for place, rank in enumerate(ranks):
            parts = self._flat[place, : sum(sizes[place])].split(sizes[place])
            self.parameters[rank] = [part.view(shape) for part, shape in zip(parts, shapes[place], strict=True)]
        # A mixture has many thousands of them. `cat` would take the host long: one kernel collects them.
        room = self.parameters[dist.get_rank()]
        self._collect = CopyPlan(
            [Copy("", _rows(source), _rows(target), 1.0) for source, target in zip(parameters, room, strict=True)]
        )
        self._own = self._flat[ranks.index(dist.get_rank())]

    def exchange(self) -> None:
        """Send this rank's parameters and receive the others'."""
        self._collect.run()
        dist.all_gather_into_tensor(self._flat.view(-1), self._own, group=self._group)


def _rows(values: torch.Tensor) -> torch.Tensor:
    """Return values with two dimensions: DoRA's row lengths as one row."""
    return values if values.ndim == 2 else values[None]


class DiskSync:
    """Through PEFT files in shared memory, loaded by vLLM's own loader."""

    def __init__(self, slot: AdapterSlot, adapter: Adapter) -> None:
        self._slot, self._adapter = slot, adapter

    def push(self, version: int) -> None:
        weights = self._adapter.export()
        with tempfile.TemporaryDirectory(
            prefix="lorarl-adapter-", dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
        ) as folder:
            path = Path(folder, f"v{version}")
            write_version(path, weights, self._adapter)
            self._slot.read(path, version)


def plan_copies(slot: AdapterSlot, adapter: Adapter, peers: Peers | None) -> CopyPlan:
    """Plan the copies from the trainer's parameters to vLLM's buffers; from `peers` where ranks share the adapter.

    Raises:
        ValueError: vLLM keeps the adapter in a way that no plan is known for.
    """
    sources = peers.parameters if peers else {dist.get_rank(): adapter.parameters}
    targets = slot.layout(adapter.shapes, adapter.config.rank)
    return CopyPlan(list(_copies(adapter, sources, slot.buffers(), targets)))


def _copies(
    adapter: Adapter,
    sources: Mapping[int, Sequence[torch.Tensor]],
    buffers: Sequence[torch.Tensor],
    targets: Sequence[Sequence[Block]],
) -> Iterator[Copy]:
    """Yield the copies from parameters (by rank and index) to buffers, which hold B with the adapter's scale."""
    held: dict[str, list[tuple[torch.Tensor, Block]]] = {}
    for (rank, index), blocks in adapter.blocks.items():
        for block in blocks:
            held.setdefault(block.name, []).append((sources[rank][index].detach(), block))
    for buffer, wanted in zip(buffers, targets, strict=True):
        for target in wanted:
            scale = adapter.config.scale if target.name.endswith("lora_B.weight") else 1.0
            for parameter, source in held[target.name]:
                for one in copies(source, target):
                    yield Copy(
                        target.name,
                        parameter[one.source_rows, one.source_columns],
                        buffer[one.target_rows, one.target_columns],
                        scale,
                    )
