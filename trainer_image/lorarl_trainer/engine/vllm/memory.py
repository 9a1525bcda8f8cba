"""The GPU memory that vLLM gives up while the trainer works, and takes back before it generates.

vLLM's own sleep mode copies the weights to newly pinned memory each time, which takes 12 s at 7B. The base model is
frozen, so one copy on the host is enough, and an engine that shares the trainer's tensors needs none. The KV cache is
of no use after an update, so its content is dropped.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import torch

from lorarl_trainer.engine.vllm import gpu_slices, slices
from lorarl_trainer.engine.vllm.binding import checked
from lorarl_trainer.engine.vllm.names import SleepingMemory

Offloaded = Literal["kv_cache", "weights"]


class EngineMemory:
    """The part of the engine's memory that sleeps between rollouts."""

    def __init__(self, worker: slices.Worker, offload: Collection[str]) -> None:
        """`worker` was started with `enable_sleep_mode`. `offload` are vLLM's tags of what will sleep."""
        self._worker, self._offload = worker, frozenset(offload)
        self._backups: dict[int, torch.Tensor] = {}
        self.asleep: frozenset[str] = frozenset()

    def sleep(self) -> bool:
        """Give the memory to the trainer; return whether it was awake."""
        if self.asleep == self._offload:
            return False
        torch.cuda.synchronize()
        for address, allocation in _allocations(self._offload - self.asleep):
            if allocation.tag == "weights" and address not in self._backups:
                self._backups[address] = _on_host(address, allocation.handle[1])
            SleepingMemory.unmap_and_release(allocation.handle)
            allocation.is_asleep = True
        self.asleep = self._offload
        return True

    def wake(self, *tags: Offloaded) -> bool:
        """Take memory back: weights with their content, the KV cache empty. Return whether any of it slept."""
        waking = self.asleep & set(tags)
        if not waking:
            return False
        # The engine needs what the trainer's allocator keeps in reserve.
        torch.cuda.empty_cache()
        for address, allocation in _allocations(waking):
            SleepingMemory.create_and_map(allocation.handle)
            allocation.is_asleep = False
            if (backup := self._backups.get(address)) is not None:
                SleepingMemory.libcudart.cudaMemcpy(address, backup.data_ptr(), backup.nbytes)
        self.asleep -= waking
        if "kv_cache" in waking:
            self._worker.model_runner.post_kv_cache_wake_up()
        return True


def _allocations(tags: Collection[str]) -> list[tuple[int, gpu_slices.AllocationData]]:
    """Return vLLM's allocations with these tags, by address."""
    allocator: gpu_slices.CuMemAllocator = checked(
        SleepingMemory.CuMemAllocator.get_instance(), gpu_slices.CuMemAllocator, SleepingMemory
    )
    return [item for item in allocator.pointer_to_data.items() if item[1].tag in tags]


def _on_host(address: int, size: int) -> torch.Tensor:
    backup = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    SleepingMemory.libcudart.cudaMemcpy(backup.data_ptr(), address, size)
    return backup
