"""The sampler that vLLM generates with on a CPU: one random number per token, instead of one per logit.

vLLM's own draws noise for every logit of the vocabulary, twice, one request after another. For 64 requests and 49,152
tokens that took a third of a step's generation. Here a token is drawn by its share of the sum, as `sample_kernel.py`
does on a GPU.

vLLM draws for a part of a prompt too, drops the token, and wants the generator back where it was, which no generator on
a CPU can do. And a request that was preempted has to continue with its next number. So the numbers of a request are
found by the place of a token in the completion.

Shape suffixes: N requests, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lorarl_trainer.engine.vllm import slices
from lorarl_trainer.engine.vllm.config import BEGUN
from lorarl_trainer.engine.vllm.names import CpuSampling
from lorarl_trainer.engine.vllm.patches.replaced import replaced

_OFFSET_PER_DRAW = 4
"""How far vLLM believes that a draw moves a generator."""


class SeededDraws:
    """The random numbers of a request, one for each token of its completion, in the place of a `torch.Generator`."""

    def __init__(self, seed: int, place: int) -> None:
        """Begin with the number for the token at a place of the completion, from 0 on."""
        self._stream = torch.Generator()
        self._seed, self._place, self._next = seed, place, -1

    def draw(self) -> torch.Tensor:
        """Return the next number, from 0 to below 1, [1], float64."""
        if self._place != self._next:
            self._stream.manual_seed(self._seed)
            torch.rand(self._place, dtype=torch.float64, generator=self._stream)
        self._place = self._next = self._place + 1
        return torch.rand(1, dtype=torch.float64, generator=self._stream)

    def get_offset(self) -> int:
        """Return the place in the stream as vLLM counts it."""
        return self._place * _OFFSET_PER_DRAW

    def set_offset(self, offset: int) -> None:
        """Go back to a place in the stream. vLLM does so when it drops a token."""
        self._place = offset // _OFFSET_PER_DRAW


@contextmanager
def cpu_sampler() -> Iterator[None]:
    """Let an engine that starts within the block on a CPU use this sampler."""
    place, of_runner, batch = CpuSampling.forward_cpu, CpuSampling.sampler_of_runner, CpuSampling.batch_of_runner
    own = getattr(place.owner, place.name)
    base: Any = getattr(of_runner.owner, of_runner.name)
    own_batch: Any = getattr(batch.owner, batch.name)

    class SeededBatch(own_batch):
        """Gives each request that joins it, for the first time or again, its own random numbers."""

        def add_request(self, request: slices.CachedRequestState) -> int:
            if request.generator is not None:
                assert request.sampling_params is not None and request.sampling_params.seed is not None
                begun = (request.sampling_params.extra_args or {}).get(BEGUN, 0)
                request.generator = SeededDraws(request.sampling_params.seed, begun + len(request.output_token_ids))
            index: int = super().add_request(request)
            return index

    class CountingSampler(base):
        """Returns with each token's log-probability how many tokens were possible, in the place of its rank."""

        @staticmethod
        def gather_logprobs(logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> Any:
            tokens_N_1 = token_ids[:, None]
            counts_N = (logprobs > float("-inf")).sum(1)
            return CpuSampling.LogprobsTensors(tokens_N_1.int(), logprobs.gather(1, tokens_N_1), counts_N)

    def forward_cpu(
        sampler: Any, logits_N_V: torch.Tensor, generators: dict[int, SeededDraws], k: Any, p: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if len(generators) != len(logits_N_V):  # vLLM's trial run has no seeds
            result: tuple[torch.Tensor, torch.Tensor | None] = own(sampler, logits_N_V, generators, k, p)
            return result
        # vLLM has divided by the temperature and applied minP.
        logprobs_N_V = CpuSampling.apply_top_k_top_p(logits_N_V, k, p).log_softmax(dim=-1, dtype=torch.float32)
        uniform_N = torch.cat([generators[row].draw() for row in range(len(generators))])
        return draw(logprobs_N_V, uniform_N), logprobs_N_V

    with replaced(place, forward_cpu), replaced(of_runner, CountingSampler), replaced(batch, SeededBatch):
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
