"""vLLM's slots for adapters: what is in each, how an adapter gets there, and where vLLM keeps its elements.

Every version has its own id and name, so nothing that vLLM keeps by name or id (a prefix cache, a loaded adapter) can
be stale. vLLM has no public way to load an adapter from tensors. This does what vLLM's own loader does, and the tests
hold both to the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from lorarl_trainer.engine.vllm import parts, slices
from lorarl_trainer.engine.vllm.names import AdapterSlots
from lorarl_trainer.lora.blocks import Block, Numbers, rectangles
from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.experts import completed, is_expert
from lorarl_trainer.lora.numbered import column_numbers, on_host, owner_numbers, row_numbers, split
from lorarl_trainer.lora.peft_format import adapter_config
from lorarl_trainer.lora.tensor_names import PEFT_PREFIX

_DIGIT = 256
"""bf16 holds whole numbers up to this one exactly, so larger ones travel as two digits."""


class AdapterSlot:
    """A slot of the vLLM worker in this process, and the only place where the engine keeps its adapter's version.

    Attributes:
        request: what requests name the adapter by; None for an empty slot: the base model generates.
    """

    def __init__(
        self, worker: slices.Worker, engine: slices.LLMEngine, index: int = 0, first: AdapterSlot | None = None
    ) -> None:
        """Take over the slot of this index in vLLM, which is empty. Each but the `first` has the layout of that one."""
        self._manager, self._loras = parts.adapter_manager(worker), worker.model_runner.lora_manager
        self._engine, self._device, self._index, self._first = engine, worker.device, index, first
        self._layout: list[list[Block]] | None = None
        self.request: slices.LoRARequest | None = None

    @property
    def version(self) -> int:
        """The adapter version that requests ask for; 0 for an empty slot."""
        return self.request.lora_int_id if self.request else 0

    @property
    def version_in_vllm(self) -> int:
        """The adapter version that vLLM has in this slot; 0 for an empty slot."""
        return self._manager.lora_index_to_id[self._index] or 0

    @torch.no_grad()
    def load(self, adapter: Mapping[str, torch.Tensor], config: AdapterConfig, version: int) -> None:
        """Put an adapter in Hugging Face names into the slot, the first one that is free."""
        # vLLM scales B in place, so it gets its own tensors.
        self._load({name: tensor.clone() for name, tensor in adapter.items()}, config, version)

    def _load(self, adapter: Mapping[str, torch.Tensor], config: AdapterConfig, version: int) -> None:
        """Put an adapter, whose tensors vLLM may change, into the slot."""
        content = adapter_config(adapter, config, base_model="")
        model = AdapterSlots.LoRAModel.from_lora_tensors(
            lora_model_id=version,
            tensors={PEFT_PREFIX + name: tensor for name, tensor in self._completed(adapter).items()},
            peft_helper=AdapterSlots.PEFTHelper.from_dict(content),
            device=self._device,
            dtype=self._loras.lora_config.lora_dtype,
            model_vocab_size=self._loras.vocab_size,
            weights_mapper=parts.name_mapper(self._manager.model),
        )
        self._clear()
        self._manager.add_adapter(model)
        self._manager.activate_adapter(version)
        self.request = _request(version)

    def read(self, folder: Path, version: int) -> None:
        """Put a PEFT adapter into the engine's only slot with vLLM's own loader, which reads the folder once, here."""
        if self.version:
            self._engine.remove_lora(self.version)
        self._engine.add_lora(_request(version, str(folder)))
        self.request = _request(version)

    def rename(self, version: int) -> None:
        """Declare that the slot's buffers hold this version from now on."""
        self._clear()
        # Without tensors: they are in the buffers, and vLLM asks for no others as long as the version is active.
        self._manager._registered_adapters[version] = AdapterSlots.LoRAModel(version, rank=0, loras={})
        self._manager._active_adapters[version] = None
        self._manager.lora_index_to_id[self._index] = version
        self.request = _request(version)

    @property
    def addresses(self) -> list[int]:
        """Where the memory of each tensor of all slots begins, those of experts too."""
        held = (value for module in self._manager.modules.values() for value in vars(module).values())
        tensors = (one for value in held for one in (value if isinstance(value, tuple) else (value,)))
        return [tensor.data_ptr() for tensor in tensors if isinstance(tensor, torch.Tensor)]

    def buffers(self) -> list[torch.Tensor]:
        """Return the slot's buffers of this rank, A [rank, inputs] and B [outputs, rank] (scaled), in a fixed order.

        Raises:
            ValueError: a buffer holds more than one matrix (experts).
        """
        modules = self._manager.modules
        found = []
        for name in sorted(modules):
            for stacked in (*modules[name].lora_a_stacked, *modules[name].lora_b_stacked):
                # The first dimension is the slots'. Experts have a matrix each instead, and an engine with one slot.
                own = stacked if stacked.dim() == 2 else stacked[self._index]
                *ones, rows, columns = own.shape
                if any(one != 1 for one in ones):
                    raise ValueError(f"vLLM keeps the adapter of {name} in buffers of shape {list(stacked.shape)}")
                found.append(own.view(rows, columns))
        return found

    def layout(self, shapes: Mapping[str, tuple[int, ...]], rank: int) -> list[list[Block]]:
        """Return what each of `buffers()` holds of an adapter with tensors of these shapes, which never change.

        The layout is read off vLLM's own loader, once: numbers that it is given arrive where an adapter's elements do.
        That empties the first slot, which is the only one that may have an adapter then.

        Raises:
            ValueError: the buffers do not hold whole rows and columns.
        """
        if self._layout is None:
            self._layout = self._first.layout(shapes, rank) if self._first else self._read_layout(shapes, rank)
        return self._layout

    def _read_layout(self, shapes: Mapping[str, tuple[int, ...]], rank: int) -> list[list[Block]]:
        tensors = sorted(shapes)
        of_each = [shapes[name] for name in tensors]
        most_rows, most_columns = (max(shape[dimension] for shape in of_each) for dimension in (0, 1))
        arrived = partial(self._arrived, {name: shapes[name] for name in tensors}, rank)
        owners = arrived(owner_numbers(of_each, 1, self._device), len(tensors))
        rows = arrived(row_numbers(of_each, self._device), most_rows - 1)
        columns = arrived(column_numbers(of_each, self._device), most_columns - 1)
        self._clear()
        torch._foreach_zero_(self.buffers())
        layout: list[list[Block]] = []
        for owner, row, column in zip(owners, rows, columns, strict=True):
            layout.append([Block(tensors[number - 1], *found) for number, found in rectangles(owner, row, column)])
        return layout

    def _arrived(
        self, shapes: Mapping[str, tuple[int, ...]], rank: int, numbers: torch.Tensor, largest: int
    ) -> list[Numbers]:
        """Return which of the numbers each element of each buffer gets, given those of an adapter's in a row."""
        buffers = self.buffers()
        arrived = torch.zeros(sum(buffer.numel() for buffer in buffers), dtype=torch.float32, device=self._device)
        unit, one = 1, AdapterConfig(rank, alpha=rank)  # a scale of 1
        while unit <= largest:
            digits = ((numbers // unit) % _DIGIT).to(self._loras.lora_config.lora_dtype)
            self._load(dict(zip(shapes, split(digits, list(shapes.values())), strict=True)), one, version=1)
            arrived.add_(torch.cat([buffer.flatten() for buffer in buffers]), alpha=unit)
            unit *= _DIGIT
        return on_host(split(arrived, [buffer.shape for buffer in buffers]))

    def _completed(self, adapter: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return an adapter as vLLM takes it: with an adapter on all experts or on none."""
        experts = [layer for parts in self._manager.packed_modules.values() for layer in parts if is_expert(layer)]
        return completed(adapter, experts)

    def _clear(self) -> None:
        if self.version_in_vllm:
            self._manager.remove_adapter(self.version_in_vllm)
        self.request = None


def _request(version: int, folder: str = "/adapter-is-in-memory") -> slices.LoRARequest:
    """Return what names a version in vLLM. Once the version is in a slot, no one reads the folder."""
    request: slices.LoRARequest = AdapterSlots.LoRARequest(f"v{version}", version, folder)
    return request
