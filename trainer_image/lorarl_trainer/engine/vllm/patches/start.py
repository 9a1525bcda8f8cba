"""vLLM's start without what a rollout has no use for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def lean_start(architectures: Sequence[str], temperature: float) -> Iterator[None]:
    """Let vLLM start within: it looks at the model's class in this process, and compiles the sampler's kernels that are used.

    It would import the class in a process of its own, to leave the GPU to those that it starts later: here the GPU is in use already.
    It would compile a kernel for each of the sampler's features, but not the one for the log-probability of a single token: 15 to 20 s
    each. And on a GPU it would tune and compile kernels of quantised models, sparse attention and mixtures of experts, whatever the
    model: seventeen for routers alone, at every start. One that is needed all the same is compiled when it is.
    """
    from vllm import ModelRegistry, SamplingParams
    from vllm.v1.worker import gpu_worker

    for architecture in architectures:
        if known := ModelRegistry.models.get(architecture):
            ModelRegistry.register_model(architecture, known.load_model_cls())
    used = SamplingParams(temperature=temperature, seed=0, logprobs=0)
    with (
        replaced(SamplingParams, "for_sampler_warmup", staticmethod(lambda: used)),
        replaced(gpu_worker, "kernel_warmup", lambda worker: None),
    ):
        yield


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give a module or class another attribute until the block ends."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
