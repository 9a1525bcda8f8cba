"""vLLM's one slot for an adapter: loading it, naming it, and where it keeps what.

Every version has an id and a name of its own: nothing that vLLM keeps by name or id (a prefix cache, a loaded adapter) can be stale.
vLLM has no public way to load an adapter from tensors: this uses what its own loader uses, and the tests hold both to the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from lorarl_trainer.lora.blocks import Block, rectangle
from lorarl_trainer.lora.peft_format import PEFT_PREFIX, adapter_config

Adapter = Mapping[str, torch.Tensor]

_DIGIT = 256
"""bf16 holds whole numbers up to this one exactly, so that larger ones travel as two digits."""


class AdapterSlot:
    """The slot of the vLLM worker in this process."""

    def __init__(self, worker: Any) -> None:
        """`worker` is what `LLM.collective_rpc` calls a function with."""
        self._loras = worker.model_runner.lora_manager
        self._manager = self._loras._adapter_manager
        self._device = worker.device
        self._layout: list[list[Block]] | None = None

    @torch.no_grad()
    def load(self, adapter: Adapter, rank: int, alpha: int, version: int) -> None:
        """Make an adapter in Hugging Face names vLLM's one and only."""
        from vllm.lora.lora_model import LoRAModel
        from vllm.lora.peft_helper import PEFTHelper

        model = LoRAModel.from_lora_tensors(
            lora_model_id=version,
            # vLLM scales B in place, so it gets tensors of its own.
            tensors={PEFT_PREFIX + name: tensor.clone() for name, tensor in adapter.items()},
            peft_helper=PEFTHelper.from_dict(adapter_config(adapter, rank, alpha, base_model="")),
            device=self._device,
            dtype=self._loras.lora_config.lora_dtype,
            model_vocab_size=self._loras.vocab_size,
        )
        self._forget()
        self._manager.add_adapter(model)
        self._manager.activate_adapter(version)

    def rename(self, version: int) -> None:
        """Say that what lies in the slot's buffers is this version from now on."""
        from vllm.lora.lora_model import LoRAModel

        self._forget()
        # Without tensors: they are in the buffers, and vLLM asks for no others as long as the version is active.
        self._manager._registered_adapters[version] = LoRAModel(version, rank=0, loras={})
        self._manager._active_adapters[version] = None
        self._manager.lora_index_to_id[0] = version

    def activate(self, version: int) -> None:
        """Put an adapter that vLLM has read into the slot, which it would do only once it generates."""
        self._manager.activate_adapter(version)

    def buffers(self) -> list[torch.Tensor]:
        """Return the buffers of this rank, A [rank, inputs] and B [outputs, rank] (already scaled), in an order that stays.

        Raises:
            ValueError: one holds more than one matrix (experts).
        """
        modules = self._manager.modules
        found = []
        for name in sorted(modules):
            for stacked in (*modules[name].lora_a_stacked, *modules[name].lora_b_stacked):
                *ones, rows, columns = stacked.shape
                if any(one != 1 for one in ones):
                    raise ValueError(f"vLLM keeps the adapter of {name} in buffers of shape {list(stacked.shape)}")
                found.append(stacked.view(rows, columns))
        return found

    def layout(self, shapes: Mapping[str, tuple[int, int]], rank: int) -> list[list[Block]]:
        """Return what each of `buffers()` holds of an adapter with tensors of these shapes: the job's, always the same.

        Read off vLLM's own loader, once: numbers that it is given arrive where an adapter's elements do. That empties the slot.

        Raises:
            ValueError: the buffers do not hold whole rows and columns.
        """
        if self._layout is None:
            self._layout = self._read_layout(shapes, rank)
        return self._layout

    def _read_layout(self, shapes: Mapping[str, tuple[int, int]], rank: int) -> list[list[Block]]:
        names = sorted(shapes)
        count = partial(torch.arange, dtype=torch.float32, device=self._device)
        owners = self._arrived({name: count(i + 1, i + 2).expand(shapes[name]) for i, name in enumerate(names)}, rank)
        rows = self._arrived({name: count(shapes[name][0])[:, None].expand(shapes[name]) for name in names}, rank)
        columns = self._arrived({name: count(shapes[name][1]).expand(shapes[name]) for name in names}, rank)
        self._forget()
        for buffer in self.buffers():
            buffer.zero_()
        layout: list[list[Block]] = []
        for owner, row, column in zip(owners, rows, columns, strict=True):
            numbers = [int(number) for number in torch.unique(owner).tolist() if number]  # 0: no adapter here
            layout.append([])
            for number in numbers:
                here_rows, here_columns, hf_rows, hf_columns = rectangle(owner == number, row, column)
                layout[-1].append(Block(names[number - 1], here_rows, here_columns, hf_rows, hf_columns))
        return layout

    def _arrived(self, numbers: Adapter, rank: int) -> list[torch.Tensor]:
        """Return which of the numbers each element of each buffer gets."""
        arrived = [torch.zeros(buffer.shape, device=self._device) for buffer in self.buffers()]
        largest, place = max(int(number.max()) for number in numbers.values()), 1
        while place <= largest:
            digits = {name: (number // place) % _DIGIT for name, number in numbers.items()}
            self.load(digits, rank, alpha=rank, version=1)  # alpha = rank: a scaling of 1
            for numbers_of_buffer, buffer in zip(arrived, self.buffers(), strict=True):
                numbers_of_buffer.add_(buffer, alpha=place)
            place *= _DIGIT
        return arrived

    def _forget(self) -> None:
        for old in list(self._manager.list_adapters()):
            self._manager.remove_adapter(old)
