"""The base model's products on a CPU without AVX-512: torch's, instead of those of vLLM's copy of oneDNN.

There, oneDNN shares the rows of a product out among threads so that their number changes the rounding, and a run would
not give the same samples with one thread and two. torch's products, with MKL's promise (`devices/cpu.py`), do not.
They take about as long (0.5 to 1 times, for 8 to 256 rows of SmolLM2), and need no copy of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lorarl_trainer.engine.vllm import names
from lorarl_trainer.engine.vllm.names import CpuWorker
from lorarl_trainer.engine.vllm.patches.replaced import replaced


@contextmanager
def cpu_linear() -> Iterator[None]:
    """Let an engine that starts within the block on such a CPU multiply by its base model as torch does."""
    if names.on_gpu() or torch.cpu._is_avx512_supported():
        yield
        return
    with replaced(CpuWorker.supports_onednn, False):
        yield
