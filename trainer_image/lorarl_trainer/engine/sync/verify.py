"""Whether vLLM holds the trainer's adapter, element by element: what `rollout.verifySync` asks after every sync."""

from __future__ import annotations

import torch

from lorarl_trainer.backends.megatron.layout import AdapterLayout
from lorarl_trainer.backends.megatron.model import LoraModel
from lorarl_trainer.engine.vllm.adapter_slots import AdapterSlot
from lorarl_trainer.errors import StaleAdapterError


class SyncCheck:
    """Compares vLLM's buffers with what Megatron-Bridge exports, by whatever transport it came."""

    def __init__(self, slot: AdapterSlot, model: LoraModel, layout: AdapterLayout, rank: int, alpha: int) -> None:
        """Learn vLLM's layout: it comes before the first sync."""
        self._model, self._scaling, self._slot = model, alpha / rank, slot
        self._layout = slot.layout(layout.shapes, rank)

    @torch.no_grad()
    def compare(self) -> None:
        """Compare every element (collective).

        Raises:
            StaleAdapterError: one differs.
        """
        adapter = self._model.export()
        for buffer, blocks in zip(self._slot.buffers(), self._layout, strict=True):
            expected = torch.zeros_like(buffer)
            for block in blocks:
                values = adapter[block.name][block.hf_rows][:, block.hf_columns].to(buffer.dtype)
                if block.name.endswith("lora_B.weight"):
                    values *= self._scaling
                expected[block.rows[:, None], block.columns] = values
            if not torch.equal(buffer, expected):
                names = ", ".join(block.name for block in blocks) or "a module without an adapter"
                raise StaleAdapterError(
                    f"vLLM's copy of {names} is not the trainer's; please report this, and set adapterSync: disk"
                )
