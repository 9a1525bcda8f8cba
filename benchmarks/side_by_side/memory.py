"""The most memory that a GPU ever held while something ran, as its driver tells it."""

from __future__ import annotations

import os
import threading
from typing import Self


class PeakGpuMemory:
    """Samples the used memory of the first GPU that CUDA may use, five times a second; 0 where there is none."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_ended, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample_until_ended(self) -> None:
        try:
            import pynvml
        except ImportError:  # comes with vLLM for GPUs
            return
        pynvml.nvmlInit()
        # The driver numbers all GPUs of the machine, whichever of them this process may use.
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
        gpu = pynvml.nvmlDeviceGetHandleByIndex(int(first or 0))
        while not self._ended.wait(0.2):
            self.peak_bytes = max(self.peak_bytes, int(pynvml.nvmlDeviceGetMemoryInfo(gpu).used))
