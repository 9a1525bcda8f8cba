"""The GPU memory that vLLM gives up while the trainer works, and takes back before it generates.

vLLM's own sleep mode copies the weights to new pinned memory each time, which takes 12 s at 7B. The base model is frozen: a copy on the
host is made once, and where the trainer's own tensors are used there is none. What is in the KV cache is of no use after an update.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import torch

Offloaded = Literal["kv_cache", "weights"]


class EngineMemory:
    """What of the engine's memory sleeps between rollouts."""

    def __init__(self, worker: Any, offload: Collection[str]) -> None:
        """`worker` is vLLM's, started with `enable_sleep_mode`; `offload` are its own tags of what shall sleep."""
        self._worker, self._offload = worker, frozenset(offload)
        self._backups: dict[int, torch.Tensor] = {}
        self.asleep: frozenset[str] = frozenset()

    def sleep(self) -> bool:
        """Give the memory to the trainer; return whether it was awake."""
        from vllm.device_allocator.cumem import unmap_and_release

        if self.asleep == self._offload:
            return False
        torch.cuda.synchronize()
        for address, allocation in self._allocations(self._offload - self.asleep):
            if allocation.tag == "weights" and address not in self._backups:
                self._backups[address] = _on_host(address, allocation.handle[1])
            unmap_and_release(allocation.handle)
            allocation.is_asleep = True
        self.asleep = self._offload
        return True

    def wake(self, *tags: Offloaded) -> bool:
        """Take memory back, weights with what was in them, the KV cache empty; return whether any of it slept."""
        from vllm.device_allocator.cumem import create_and_map, libcudart

        waking = self.asleep & set(tags)
        if not waking:
            return False
        # What the trainer's allocator keeps in reserve is needed here.
        torch.cuda.empty_cache()
        for address, allocation in self._allocations(waking):
            create_and_map(allocation.handle)
            allocation.is_asleep = False
            if (backup := self._backups.get(address)) is not None:
                libcudart.cudaMemcpy(address, backup.data_ptr(), backup.nbytes)
        self.asleep -= waking
        if "kv_cache" in waking:
            self._worker.model_runner.post_kv_cache_wake_up()
        return True

    def _allocations(self, tags: Collection[str]) -> list[tuple[int, Any]]:
        from vllm.device_allocator.cumem import CuMemAllocator

        return [item for item in CuMemAllocator.get_instance().pointer_to_data.items() if item[1].tag in tags]


def _on_host(address: int, size: int) -> torch.Tensor:
    from vllm.device_allocator.cumem import libcudart

    backup = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    libcudart.cudaMemcpy(backup.data_ptr(), address, size)
    return backup
