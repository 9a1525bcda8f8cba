"""Attention with sinks on a CPU, whatever the model's precision.

vLLM 0.26's kernel takes sinks in bf16 alone, and its layer hands it those of the model: in fp32 its first step fails.
Files have sinks in bf16, so these lose nothing. vLLM has no door for this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from lorarl_trainer.engine.vllm.names import CpuSinks
from lorarl_trainer.engine.vllm.patches.replaced import replaced


@contextmanager
def cpu_sinks() -> Iterator[None]:
    """Let an engine that starts within the block on a CPU attend so."""
    with replaced(CpuSinks.get_impl_cls, staticmethod(_attention_class)):
        yield


@cache
def _attention_class() -> type:
    """Return the class. It is made here because its base class is vLLM's, which must have been set up."""
    base: Any = CpuSinks.CPUAttentionBackendImpl

    class SinksInBf16(base):
        """vLLM's own layer."""

        sinks: torch.Tensor

        def forward(self, *arguments: Any, **options: Any) -> torch.Tensor:
            # They are the model's only after it has been loaded.
            self.sinks = self.sinks.to(torch.bfloat16)
            attended: torch.Tensor = super().forward(*arguments, **options)
            return attended

    return SinksInBf16
