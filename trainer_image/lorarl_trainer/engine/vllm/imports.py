"""Importing vLLM, set up for this process, without what a rollout never uses. TorchInductor alone takes seconds."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lorarl_trainer.devices.imports import compile_at_first_call, import_without_compiler, stand_ins, without
from lorarl_trainer.devices.vllm_environment import vllm_environment
from lorarl_trainer.engine.vllm import binding, names
from lorarl_trainer.engine.vllm.config import EngineConfig
from lorarl_trainer.models.layer_kinds import computes, has_sinks, rotates_separate_heads, shares_keys

_WARMUP = "vllm.model_executor.warmup.kernel_warmup"
"""What `names.LeanStart` replaces, and what would load TorchInductor to warm it up."""
_OF_SERVERS = (
    "vllm.connections",
    "vllm.entrypoints.chat_utils",
    "vllm.entrypoints.mcp.tool_server",
    "vllm.v1.structured_output.backend_guidance",
    "vllm.v1.structured_output.backend_xgrammar",
)
"""Downloads, chats, tools and answers by a grammar. They load OpenAI's types, an HTTP client and parsers."""
_OPTIONAL = ("scipy", "sklearn", "pandas", "cv2")
"""What vLLM imports if it is installed, for sound, for drafts of another model, for AMD's kernels and for videos."""


def environment() -> dict[str, str]:
    """Return the variables that vLLM reads. Set them before it is imported."""
    # The engine's core runs in this process.
    return {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **vllm_environment()}


@contextmanager
def for_rollouts() -> Iterator[None]:
    """Let the block import what rollouts use of vLLM, and nothing for servers, sounds or videos."""
    with stand_ins(*_OF_SERVERS), without(*_OPTIONAL), compile_at_first_call():
        yield


def import_vllm() -> None:
    """Import vLLM, set up to run within this process.

    Raises:
        InputError: it is not the version that lorarl was written for.
    """
    os.environ.update(environment())
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    with import_without_compiler():
        import vllm  # noqa: F401
    with for_rollouts():
        from vllm import EngineArgs, LLMEngine  # noqa: F401  # for the time that it takes: later imports find them

    binding.require_version(*names.ALWAYS)


def bind_names(config: EngineConfig, hf_config: Any) -> list[str]:
    """Import the names that an engine on this device needs for the job, and choose vLLM's runner of models.

    Returns:
        For each patch that stays off because a name of it is gone, a line that names its price.

    Raises:
        InputError: names every name that is missing and cannot be done without, and its feature.
    """
    required, faster = needed_by(hf_config.get_text_config()), set[type[binding.Feature]]()
    if names.on_gpu():
        # vLLM takes its older runner for most mixtures of experts, which starts a kernel for each request's random
        # number. 12 layers of Qwen3-30B-A3B generated 512 x 256 tokens in 3.2 s with it, and in 2.2 s with this one
        # (benchmarks/results/gpu-2026-11-28-experts.json).
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
        required |= _for_correctness(config, hf_config)
        faster |= {names.GpuDeltaNets} if computes(hf_config.get_text_config(), "gated_delta") else set()
    if config.expert_rank is not None:
        required |= {names.Experts, names.GpuExperts if names.on_gpu() else names.CpuExperts}
    if config.records_routing:
        required.add(names.Routing)
    if config.plan.offload:
        required.add(names.SleepingMemory)
    of_device = names.ON_GPU if names.on_gpu() else names.ON_CPU
    wanted = {*names.ALWAYS, *of_device, *required, *faster}
    with for_rollouts(), stand_ins(_WARMUP):
        off = binding.bind(*(feature for feature in names.FEATURES if feature in wanted), required=required)
    if names.LeanStart in wanted and not names.LeanStart.is_on:
        _take_own_warmup()
    return off


def needed_by(language: Any) -> set[type[binding.Feature]]:
    """Return what a language model with such a configuration needs on this device, whatever the job is."""
    needs: dict[type[binding.Feature], bool] = {}
    if names.on_gpu():
        needs[names.GpuSharedKeys] = shares_keys(language)
    else:
        needs[names.SharedKeys] = shares_keys(language)
        needs[names.CpuDeltaNets] = computes(language, "gated_delta")
        needs[names.CpuStateSpaces] = computes(language, "state_space")
        needs[names.CpuSinks] = has_sinks(language)
        needs[names.CpuRotary] = rotates_separate_heads(language)
    return {feature for feature, needed in needs.items() if needed}


def _take_own_warmup() -> None:
    """Give vLLM's worker its own warm-up in place of the stand-in that it has imported."""
    worker = importlib.import_module("vllm.v1.worker.gpu_worker")
    worker.kernel_warmup = importlib.import_module(_WARMUP).kernel_warmup  # type: ignore[attr-defined]


def _for_correctness(config: EngineConfig, hf_config: Any) -> set[type[binding.Feature]]:
    """Return what otherwise only makes a GPU faster, and this job would be wrong without."""
    windows = set(getattr(hf_config.get_text_config(), "layer_types", None) or ())
    needs = {names.Sampling: config.sampling.truncates, names.Attention: len(windows) > 1}
    return {feature for feature, needed in needs.items() if needed}
