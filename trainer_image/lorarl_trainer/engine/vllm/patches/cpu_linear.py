"""The base model's products on a CPU: torch's, instead of those of vLLM's copy of oneDNN.

oneDNN shares a product out among threads so that their number changes the rounding, and a run would not give the same
samples with one thread and two: without AVX-512 at most numbers of rows, with it at one row of some shapes. torch's
products, with MKL's promise (`devices/cpu.py`), do not. They need no copy of the weights. For SmolLM2 they take about
as long from 64 rows on (0.8 to 1.1 times); for fewer on a CPU with AVX-512 up to twice as long, some microseconds each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lorarl_trainer.engine.vllm.names import CpuWorker
from lorarl_trainer.engine.vllm.patches.replaced import replaced


@contextmanager
def cpu_linear() -> Iterator[None]:
    """Let an engine that starts within the block on a CPU multiply by its base model as torch does."""
    with replaced(CpuWorker.supports_onednn, False):
        yield
