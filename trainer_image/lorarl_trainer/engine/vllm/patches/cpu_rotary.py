"""The positions of latent attention and of LFM2's on a CPU.

vLLM 0.26 hands its kernel for CPUs their queries as [tokens, heads, head], and that is right for [tokens, heads * head]
alone. Its own code in torch takes both. vLLM has no door for this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lorarl_trainer.engine.vllm.names import CpuRotary
from lorarl_trainer.engine.vllm.patches.replaced import replaced


@contextmanager
def cpu_rotary() -> Iterator[None]:
    """Let an engine that starts within the block on a CPU rotate queries and keys in torch."""
    with replaced(CpuRotary.forward_cpu, lambda rotary, *arguments: rotary.forward_native(*arguments)):
        yield
