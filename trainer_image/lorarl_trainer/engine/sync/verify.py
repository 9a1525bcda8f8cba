"""Whether vLLM holds the trainer's adapter, element by element: checked after every sync if `rollout.verifySync`."""

from __future__ import annotations

import torch

from lorarl_trainer.engine.vllm.adapter_slots import AdapterSlot
from lorarl_trainer.errors import StaleAdapterError
from lorarl_trainer.protocols.adapter import Adapter


class SyncCheck:
    """Compares vLLM's buffers with the adapter's export, with either transport."""

    def __init__(self, slot: AdapterSlot, adapter: Adapter) -> None:
        """Learn vLLM's layout. This has to come before the first sync."""
        self._slot, self._adapter = slot, adapter
        self._layout = slot.layout(adapter.shapes, adapter.config.rank)

    @torch.no_grad()
    def compare(self) -> None:
        """Compare every element (collective).

        Raises:
            StaleAdapterError: an element differs.
        """
        weights = self._adapter.export()
        for buffer, blocks in zip(self._slot.buffers(), self._layout, strict=True):
            expected = torch.zeros_like(buffer)
            for block in blocks:
                values = weights[block.name][block.hf_rows][:, block.hf_columns].to(buffer.dtype)
                if block.name.endswith("lora_B.weight"):
                    values *= self._adapter.config.scale
                expected[block.rows[:, None], block.columns] = values
            if not torch.equal(buffer, expected):
                names = ", ".join(block.name for block in blocks) or "a module without an adapter"
                raise StaleAdapterError(
                    f"vLLM's copy of {names} is not the trainer's; please report this, and set adapterSync: disk"
                )
