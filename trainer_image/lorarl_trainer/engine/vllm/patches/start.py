"""vLLM's start without the kernels that a rollout never runs. No setting of vLLM's turns these off.

- vLLM imports each architecture's class in another process, to leave the GPU to processes that it starts later. Here
  the GPU is already in use.
- vLLM compiles a kernel for each feature of the sampler, but not the one for the log-probability of a single token:
  15 to 20 s each.
- On a GPU, vLLM tunes and compiles kernels of quantised models, sparse attention and mixtures of experts for every
  model: seventeen for routers alone, at every start. A kernel that is needed after all is compiled at its first use.

vLLM's engines of one process share their rotary embeddings, and ERNIE's model changes them. Here each has its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from lorarl_trainer.engine.vllm.names import LeanStart
from lorarl_trainer.engine.vllm.patches.models import separate_classes, with_adapters
from lorarl_trainer.engine.vllm.patches.replaced import replaced


@contextmanager
def lean_start(architectures: Sequence[str], temperature: float) -> Iterator[None]:
    """Let the engine that starts within the block compile only what it uses.

    Args:
        architectures: of the model, as its config.json names them. They are looked at in this process.
        temperature: of sampling.
    """
    from vllm import SamplingParams

    registry, transformers = LeanStart.ModelRegistry, False
    for architecture in architectures:
        if known := registry.models.get(architecture):
            model = with_adapters(architecture, known.load_model_cls())
            transformers = transformers or ".models.transformers" in model.__module__
            registry.register_model(architecture, model)
    used = SamplingParams(temperature=temperature, seed=0, logprobs=0)
    with (
        separate_classes() if transformers else nullcontext(),
        replaced(LeanStart.for_sampler_warmup, staticmethod(lambda: used)),
        replaced(LeanStart.kernel_warmup, lambda worker: None),
        replaced(LeanStart.rotary_embeddings, {}),
    ):
        yield
