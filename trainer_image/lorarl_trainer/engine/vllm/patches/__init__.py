"""What is replaced inside vLLM: everything, each with the reason why no door of vLLM's own serves.

vLLM's doors are used where they exist: `scheduler_cls` (scheduler.py), `worker_cls` (worker.py) and
`register_model_loader` (shared_base.py). `worker_extension_cls` only adds methods to a worker, so it replaces nothing.
A `vllm.general_plugins` entry point would run in every vLLM of the environment, also in a user's `vllm serve`, and
would patch the same names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from lorarl_trainer.engine.vllm import names, slices
from lorarl_trainer.engine.vllm.config import EngineConfig
from lorarl_trainer.engine.vllm.imports import for_rollouts, needed_by
from lorarl_trainer.engine.vllm.patches import adapters
from lorarl_trainer.engine.vllm.patches.attention import decoding_attention
from lorarl_trainer.engine.vllm.patches.cpu_delta_nets import cpu_delta_nets
from lorarl_trainer.engine.vllm.patches.cpu_linear import cpu_linear
from lorarl_trainer.engine.vllm.patches.cpu_rotary import cpu_rotary
from lorarl_trainer.engine.vllm.patches.cpu_sampler import cpu_sampler
from lorarl_trainer.engine.vllm.patches.cpu_sinks import cpu_sinks
from lorarl_trainer.engine.vllm.patches.cpu_state_spaces import cpu_state_spaces
from lorarl_trainer.engine.vllm.patches.gpu_delta_nets import keep_first_configuration
from lorarl_trainer.engine.vllm.patches.models import trained_model
from lorarl_trainer.engine.vllm.patches.sampler import rollout_sampler
from lorarl_trainer.engine.vllm.patches.shared_keys import shared_keys
from lorarl_trainer.engine.vllm.patches.start import lean_start
from lorarl_trainer.models.layer_kinds import computes

_OF_MODELS = {
    names.SharedKeys: shared_keys,
    names.GpuSharedKeys: shared_keys,
    names.CpuDeltaNets: cpu_delta_nets,
    names.CpuStateSpaces: cpu_state_spaces,
    names.CpuSinks: cpu_sinks,
    names.CpuRotary: cpu_rotary,
}
"""What replaces the parts of vLLM in which a model needs another kernel, by the feature that binds them."""


@contextmanager
def applied(config: EngineConfig, hf_config: Any) -> Iterator[None]:
    """Let the engine that starts within the block have all that is replaced for its job, as far as it is on.

    vLLM must have been set up, and the names bound (`imports.py`).
    """
    with ExitStack() as stack:
        for replacement in _replacements(config, hf_config):
            stack.enter_context(replacement)
        yield


def _replacements(config: EngineConfig, hf_config: Any) -> Iterator[AbstractContextManager[None]]:
    yield for_rollouts()
    yield trained_model(hf_config.architectures or ())
    yield adapters.adapter_layers(config.expert_rank, config.plan.adapters)
    for feature in needed_by(hf_config.get_text_config()):
        yield _OF_MODELS[feature]()
    if not names.on_gpu():
        yield cpu_sampler()
        yield cpu_linear()
        return
    if computes(hf_config.get_text_config(), "gated_delta") and names.GpuDeltaNets.is_on:
        keep_first_configuration(getattr(names.GpuDeltaNets, kernel) for kernel in names.GpuDeltaNets.names)
    if names.Sampling.is_on:
        yield rollout_sampler()
    if names.Attention.is_on:
        yield decoding_attention()
    if names.LeanStart.is_on:
        yield lean_start(config.sampling.temperature)


def skip_adapter_lookup(worker: slices.Worker, config: EngineConfig) -> None:
    """Stop a running engine's lookup of each token's adapter before a step, where no layer needs it."""
    if names.AdapterLayers.is_on and names.AdapterLookup.is_on:
        adapters.skip_adapter_lookup(worker, with_experts=config.expert_rank is not None)
