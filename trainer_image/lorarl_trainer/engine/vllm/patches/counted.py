"""How many tokens were possible in the place of each, from vLLM's V1 runner.

CPUs have that runner, and GPUs for mixtures of experts. vLLM's own sampler returns the token's rank there. The trainer
renormalises over the tokens that were possible, and would take the rank for their number. The V2 runner has a sampler
of ours instead (`sampler.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lorarl_trainer.engine.vllm import names
from lorarl_trainer.engine.vllm.names import Counting
from lorarl_trainer.engine.vllm.patches.replaced import replaced


@contextmanager
def counting_sampler(*, mixture: bool) -> Iterator[None]:
    """Let an engine that starts within the block return them. `mixture`: its model is a mixture of experts."""
    if names.on_gpu() and not mixture:
        yield
        return
    place = Counting.sampler_of_runner
    base: Any = getattr(place.owner, place.name)

    class CountingSampler(base):
        """Returns with each token's log-probability how many tokens were possible, in the place of its rank."""

        @staticmethod
        def gather_logprobs(logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor) -> Any:
            tokens_N_1 = token_ids[:, None]
            counts_N = (logprobs > float("-inf")).sum(1)
            return Counting.LogprobsTensors(tokens_N_1.int(), logprobs.gather(1, tokens_N_1), counts_N)

    with replaced(place, CountingSampler):
        yield
