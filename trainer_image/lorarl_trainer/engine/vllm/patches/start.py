"""vLLM's start on a GPU without the kernels that a rollout never runs. No setting of vLLM's turns these off.

- vLLM compiles a kernel for each feature of the sampler, but not the one for the log-probability of a single token:
  15 to 20 s each.
- It tunes and compiles kernels of quantised models, sparse attention and mixtures of experts for every model: seventeen
  for routers alone, at every start. A kernel that is needed after all is compiled at its first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lorarl_trainer.engine.vllm.names import LeanStart
from lorarl_trainer.engine.vllm.patches.replaced import replaced


@contextmanager
def lean_start(temperature: float) -> Iterator[None]:
    """Let the engine that starts within the block on a GPU compile only what it uses to sample at a temperature."""
    from vllm import SamplingParams

    used = SamplingParams(temperature=temperature, seed=0, logprobs=0)
    with (
        replaced(LeanStart.for_sampler_warmup, staticmethod(lambda: used)),
        replaced(LeanStart.kernel_warmup, lambda worker: None),
    ):
        yield
