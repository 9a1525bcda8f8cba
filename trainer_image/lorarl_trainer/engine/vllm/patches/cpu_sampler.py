"""The sampler that vLLM generates with on a CPU: one random number per token, instead of one per logit.

vLLM's own draws noise for every logit of the vocabulary, twice, one request after another. For 64 requests and 49,152
tokens that took a third of a step's generation. Here a token is drawn by its share of the sum, as `sample_kernel.py`
does on a GPU.

Shape suffixes: N requests, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lorarl_trainer.engine.vllm import names
from lorarl_trainer.engine.vllm.names import CpuSampling
from lorarl_trainer.engine.vllm.patches.replaced import replaced


@contextmanager
def cpu_sampler() -> Iterator[None]:
    """Let an engine that starts within the block on a CPU use this sampler."""
    if names.on_gpu():
        yield
        return
    place = CpuSampling.forward_cpu
    own = getattr(place.owner, place.name)

    def forward_cpu(
        sampler: Any, logits_N_V: torch.Tensor, generators: dict[int, torch.Generator], k: Any, p: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        # vLLM's trial run has no seeds.
        if k is not None or p is not None or len(generators) != len(logits_N_V):
            result: tuple[torch.Tensor, torch.Tensor | None] = own(sampler, logits_N_V, generators, k, p)
            return result
        logprobs_N_V = logits_N_V.log_softmax(dim=-1, dtype=torch.float32)
        ordered = [generators[row] for row in range(len(generators))]
        uniform_N = torch.cat([torch.rand(1, dtype=torch.float64, generator=generator) for generator in ordered])
        return draw(logprobs_N_V, uniform_N), logprobs_N_V

    with replaced(place, forward_cpu):
        yield


def draw(logprobs_N_V: torch.Tensor, uniform_N: torch.Tensor) -> torch.Tensor:
    """Return the token of each row at which the sum of the probabilities exceeds its share of the whole, [N], int64.

    Args:
        logprobs_N_V: log-probabilities.
        uniform_N: the shares, float64, from 0 to below 1.
    """
    sums_N_V = logprobs_N_V.double().exp_().cumsum(1)
    wanted_N = uniform_N * sums_N_V[:, -1]
    return torch.searchsorted(sums_N_V, wanted_N[:, None], right=True)[:, 0]
