"""The positions of latent attention on a CPU.

vLLM 0.26 hands its kernel for CPUs queries as [tokens, heads, head], and that is right for [tokens, heads * head]
alone. Its own code in torch takes both. vLLM has no door for this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lorarl_trainer.engine.vllm.names import CpuLatent
from lorarl_trainer.engine.vllm.patches.replaced import replaced


@contextmanager
def cpu_latent() -> Iterator[None]:
    """Let an engine that starts within the block on a CPU rotate queries and keys in torch."""
    with replaced(CpuLatent.forward_cpu, lambda rotary, *arguments: rotary.forward_native(*arguments)):
        yield
