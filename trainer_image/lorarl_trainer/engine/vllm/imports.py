"""Importing vLLM without what a rollout never uses. TorchInductor alone takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from lorarl_trainer.devices.imports import compile_at_first_call, import_without_compiler, stand_ins, without
from lorarl_trainer.engine.vllm import binding, names
from lorarl_trainer.engine.vllm.arguments import environment

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


def bind_names(*, sleeps: bool) -> None:
    """Import the names that an engine on this device needs, and choose vLLM's runner of models.

    `sleeps`: it gives memory up between rollouts.

    Raises:
        InputError: names every one that is missing, and its feature.
    """
    if names.on_gpu():
        # vLLM takes its older runner for most mixtures of experts, which starts a kernel for each request's random
        # number. 12 layers of Qwen3-30B-A3B generated 512 x 256 tokens in 3.2 s with it, and in 2.2 s with this one
        # (benchmarks/results/gpu-2026-11-28-experts.json).
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    of_device = names.ON_GPU if names.on_gpu() else names.ON_CPU
    with for_rollouts(), stand_ins(_WARMUP):
        binding.bind(*names.ALWAYS, *of_device, *((names.SleepingMemory,) if sleeps else ()))
