"""The GPU memory that vLLM gives up while the trainer works, and takes back before it generates.

vLLM's own sleep mode copies the weights to newly pinned memory each time, which takes 12 s at 7B. The base model is
frozen, so one copy on the host is enough, and an engine that shares the trainer's tensors needs none. The adapter's
buffers are among the weights, and are copied each time: an engine may wake and generate without a sync. The KV cache
is of no use after an update, so its content is dropped.
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

    def __init__(self, worker: slices.Worker, offload: Collection[str], adapter: Collection[int]) -> None:
        """Nothing sleeps at first."""
        self._worker, self._offload, self._adapter = worker, frozenset(offload), adapter
        self._backups: dict[int, torch.Tensor] = {}
        self.asleep: frozenset[str] = frozenset()

    def sleep(self) -> bool:
        """Give the memory to the trainer; return whether it was awake."""
        if self.asleep == self._offload:
            return False
        torch.cuda.synchronize()
        for address, allocation in _allocations(self._offload - self.asleep):
            if allocation.tag == "weights":
                self._back_up(address, allocation.handle[1])
            SleepingMemory.unmap_and_release(allocation.handle)
            allocation.is_asleep = True
        self.asleep = self._offload
        return True

    def _back_up(self, address: int, size: int) -> None:
        backup = self._backups.get(address)
        if backup is None:
            backup = self._backups[address] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        elif not any(address <= one < address + size for one in self._adapter):
            return
        _copy(backup.data_ptr(), address, size)

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
                _copy(address, backup.data_ptr(), backup.nbytes)
        self.asleep -= waking
        if "kv_cache" in waking:
            self._worker.model_runner.post_kv_cache_wake_up()
        return True


def _copy(target: int, source: int, size: int) -> None:
    runtime: gpu_slices.CudaRTLibrary = SleepingMemory.libcudart
    runtime.cudaMemcpy(target, source, size)


def _allocations(tags: Collection[str]) -> list[tuple[int, gpu_slices.AllocationData]]:
    """Return vLLM's allocations with these tags, by address."""
    allocator: gpu_slices.CuMemAllocator = checked(
        SleepingMemory.CuMemAllocator.get_instance(), gpu_slices.CuMemAllocator, SleepingMemory
    )
    return [item for item in allocator.pointer_to_data.items() if item[1].tag in tags]
