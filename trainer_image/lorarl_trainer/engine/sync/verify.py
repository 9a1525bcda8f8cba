"""Whether vLLM holds the trainer's adapter: checked after every sync, on the device that both share."""

from __future__ import annotations

from typing import Literal

import torch
import torch.distributed as dist

from lorarl_trainer.engine.sync.copy_plan import Compared
from lorarl_trainer.engine.sync.transports import Peers, make_sync, plan_copies
from lorarl_trainer.engine.vllm.adapter_slots import AdapterSlot
from lorarl_trainer.errors import StaleAdapterError
from lorarl_trainer.lora.adapter import Adapter
from lorarl_trainer.lora.blocks import Copy
from lorarl_trainer.lora.targets import last_part


class DeliveryCheck:
    """Compares vLLM's buffers with the trainer's parameters, bit by bit: two reads of an adapter at memory speed.

    It has its own plan, so that a fault in how an adapter is brought shows here.
    """

    def __init__(self, slot: AdapterSlot, adapter: Adapter) -> None:
        """Plan it (collective), before the first sync."""
        self._peers = Peers(adapter) if dist.get_world_size(adapter.group) > 1 else None
        self._plan = plan_copies(slot, adapter, self._peers)
        self._last: tuple[int, torch.Tensor] | None = None

    def require(self, version: int) -> None:
        """Require that vLLM holds what the trainer has now (collective).

        Raises:
            StaleAdapterError: an element differs. The message says in which modules, and how.
        """
        if self._peers:
            self._peers.exchange()
        compared = self._plan.compare()
        if compared.differing:
            explained, self._last = self._explain(compared), None
            raise StaleAdapterError(
                f"adapter version {version} did not reach vLLM: {explained}. "
                "No rollout was made with it, and the last checkpoint is good. "
                "Set spec.rollout.adapterSync: disk, and please report this."
            )
        self._last = version, compared.sums

    def require_kept(self) -> None:
        """Require that the slot still holds what was brought there last.

        Raises:
            StaleAdapterError: something else was written to it.
        """
        if self._last and not torch.equal(self._last[1], self._plan.compare().sums):
            raise StaleAdapterError(
                f"adapter version {self._last[0]} is not in its slot of vLLM any more: another one was written there. "
                "Nothing was generated with it. Please report this."
            )

    def _explain(self, compared: Compared) -> str:
        wrong = [self._plan.copies[index] for index in compared.differing]
        families = ", ".join(sorted({last_part(copy.name.partition(".lora_")[0]) for copy in wrong}))
        where = f"{len(wrong)} of {len(self._plan.copies)} blocks differ, in {families}"
        if not any(copy.target.any() for copy in self._plan.copies):
            return f"its buffers are empty, as if the adapter were bound to no module ({where})"
        if self._last and torch.equal(self._last[1], compared.sums):
            return f"it still holds version {self._last[0]} ({where})"
        if (factor := _common_factor(wrong)) is not None:
            return f"its B is {factor:.3g} times what it should be, so its scale is not the job's ({where})"
        return where


class SyncCheck:
    """Compares vLLM's buffers with the adapter's export, with either transport: it shares no plan with a sync."""

    def __init__(self, slot: AdapterSlot, adapter: Adapter) -> None:
        """Take what to compare."""
        self._slot, self._adapter = slot, adapter

    @torch.no_grad()
    def compare(self) -> None:
        """Compare every element (collective). Raises StaleAdapterError if an element differs."""
        weights = self._adapter.export()
        layout = self._slot.layout(self._adapter.shapes, self._adapter.config.rank)
        for buffer, blocks in zip(self._slot.buffers(), layout, strict=True):
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


class Delivery:
    """The way of the adapter into one slot, and the checks that it is there.

    Attributes:
        sync: brings it.
        arrived: its check after each sync.
        every_element: the check of `rollout.verifySync`.
    """

    def __init__(self, transport: Literal["tensor", "disk"], slot: AdapterSlot, adapter: Adapter) -> None:
        """Plan it (collective), before the first sync."""
        self.sync = make_sync(transport, slot, adapter)
        self.arrived = DeliveryCheck(slot, adapter)
        self.every_element = SyncCheck(slot, adapter)


def _common_factor(wrong: list[Copy]) -> float | None:
    """Return by which factor all targets are too large; None if they are not the same times what they should be."""
    factors = []
    for copy in wrong:
        expected = copy.source.float() * copy.scale
        if not copy.name.endswith("lora_B.weight") or not expected.any():
            return None
        factor = float((copy.target.float() * expected).sum() / expected.square().sum())
        if not torch.allclose(
            copy.target.float(), expected * factor, rtol=0.02, atol=float(expected.abs().max()) * 0.01
        ):
            return None
        factors.append(factor)
    return factors[0] if factors and max(factors) - min(factors) <= 0.02 * abs(factors[0]) else None
