"""The most memory that a GPU used while something ran, as its driver reports it."""

from __future__ import annotations

import threading
from typing import Self


class PeakGpuMemory:
    """Samples the used memory of a GPU five times a second; 0 without a GPU."""

    def __init__(self, gpu: int | None) -> None:
        self.peak_bytes, self._gpu = 0, gpu
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_ended, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample_until_ended(self) -> None:
        if self._gpu is None:
            return
        try:
            import pynvml
        except ImportError:  # comes with vLLM for GPUs
            return
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(self._gpu)
        while not self._ended.wait(0.2):
            self.peak_bytes = max(self.peak_bytes, int(pynvml.nvmlDeviceGetMemoryInfo(gpu).used))
