"""How a new adapter version reaches vLLM. Two transports, one interface, the same tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import torch
import torch.distributed as dist

from lorarl_trainer.backends.megatron.layout import AdapterLayout
from lorarl_trainer.backends.megatron.model import LoraModel
from lorarl_trainer.engine.sync.copy_plan import Copy, CopyPlan
from lorarl_trainer.engine.vllm.adapter_slots import AdapterSlot
from lorarl_trainer.engine.vllm.engine import RolloutEngine
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.blocks import Block, copies
from lorarl_trainer.lora.peft_format import adapter_config, write_adapter

_SHARED_MEMORY = Path("/dev/shm")


class AdapterSync(Protocol):
    """Brings the trainer's adapter to the engine as the given version, and drops the version before."""

    def push(self, version: int) -> None:
        """Make `version` the adapter that the engine generates with (collective)."""


def make_sync(
    transport: Literal["tensor", "disk"],
    engine: RolloutEngine,
    slot: AdapterSlot,
    model: LoraModel,
    layout: AdapterLayout,
    rank: int,
    alpha: int,
) -> AdapterSync:
    """Return the transport that `rollout.adapterSync` names (collective)."""
    return (
        TensorSync(engine, slot, model, layout, rank, alpha)
        if transport == "tensor"
        else DiskSync(engine, slot, model, rank, alpha)
    )


class TensorSync:
    """Within the process, from the trainer's parameters to vLLM's buffers: no file, nothing serialised, nothing on the host.

    Which part of which parameter goes to which part of which buffer is settled once. Where parameters are split over tensor-parallel
    ranks, each rank first gets its peers' parts: they are a thousandth of the model.
    """

    def __init__(
        self, engine: RolloutEngine, slot: AdapterSlot, model: LoraModel, layout: AdapterLayout, rank: int, alpha: int
    ) -> None:
        """Make the plan (collective).

        Raises:
            InputError: vLLM keeps the adapter in a way that no plan is known for.
        """
        self._engine, self._slot = engine, slot
        try:
            targets = self._slot.layout(layout.shapes, rank)
        except ValueError as error:
            raise InputError(
                "spec.rollout.adapterSync",
                "tensor",
                f"disk for this model, since {error}",
                "Set spec.rollout.adapterSync: disk.",
            ) from error
        self._peers = _Peers(model) if model.tensor_parallel_size > 1 else None
        sources = self._peers.parameters if self._peers else {dist.get_rank(): list(model.parameters.values())}
        self.plan = CopyPlan(list(_copies(layout, sources, self._slot.buffers(), targets, alpha / rank)))

    def push(self, version: int) -> None:
        """See `AdapterSync.push`."""
        if self._peers:
            self._peers.exchange()
        self.plan.run()
        self._slot.rename(version)
        # The path is never read: the adapter of this version is there already.
        self._engine.use_adapter(version, "/adapter-is-in-memory")


class _Peers:
    """The adapter parameters of all tensor-parallel ranks, gathered on each."""

    def __init__(self, model: LoraModel) -> None:
        self._own, self._group = list(model.parameters.values()), model.tensor_parallel_group
        ranks = dist.get_process_group_ranks(self._group)
        sizes = [p.numel() for p in self._own]
        self._flat = torch.empty(len(ranks), sum(sizes), dtype=self._own[0].dtype, device=self._own[0].device)
        self.parameters: dict[int, Sequence[torch.Tensor]] = {
            rank: [part.view(p.shape) for part, p in zip(flat.split(sizes), self._own, strict=True)]
            for rank, flat in zip(ranks, self._flat, strict=True)
        }

    @torch.no_grad()
    def exchange(self) -> None:
        """Send this rank's parameters and receive the others'."""
        dist.all_gather_into_tensor(
            self._flat.view(-1), torch.cat([p.detach().flatten() for p in self._own]), group=self._group
        )


class DiskSync:
    """Through PEFT files in shared memory, loaded by vLLM's own loader."""

    def __init__(self, engine: RolloutEngine, slot: AdapterSlot, model: LoraModel, rank: int, alpha: int) -> None:
        self._engine, self._slot, self._model, self._rank, self._alpha = engine, slot, model, rank, alpha

    def push(self, version: int) -> None:
        """See `AdapterSync.push`."""
        adapter, loras = self._model.export(), self._engine.llm.llm_engine
        with tempfile.TemporaryDirectory(
            prefix="lorarl-adapter-", dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
        ) as folder:
            path = Path(folder, f"v{version}")
            write_adapter(path, adapter, adapter_config(adapter, self._rank, self._alpha, base_model=""))
            if self._engine.version:
                loras.remove_lora(self._engine.version)
            self._engine.use_adapter(version, str(path))
            loras.add_lora(self._engine.request)  # vLLM reads it here, once
        self._slot.activate(version)


def _copies(
    layout: AdapterLayout,
    sources: Mapping[int, Sequence[torch.Tensor]],
    buffers: Sequence[torch.Tensor],
    targets: Sequence[Sequence[Block]],
    scaling: float,
) -> Iterator[Copy]:
    """Yield the copies from parameters (by rank and index) to buffers; `scaling` is that of B."""
    held: dict[str, list[tuple[torch.Tensor, Block]]] = {}
    for (rank, index), blocks in layout.blocks.items():
        for block in blocks:
            held.setdefault(block.name, []).append((sources[rank][index].detach(), block))
    for buffer, wanted in zip(buffers, targets, strict=True):
        for target in wanted:
            scale = scaling if target.name.endswith("lora_B.weight") else 1.0
            for parameter, source in held[target.name]:
                for one in copies(source, target):
                    yield Copy(
                        parameter[one.source_rows, one.source_columns],
                        buffer[one.target_rows, one.target_columns],
                        scale,
                    )
