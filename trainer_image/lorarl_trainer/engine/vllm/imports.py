"""Importing vLLM without what a rollout never uses. TorchInductor alone takes seconds."""

from __future__ import annotations

import os

from lorarl_trainer.devices.imports import compile_at_first_call, import_without_compiler, stand_ins
from lorarl_trainer.engine.vllm import names
from lorarl_trainer.engine.vllm.arguments import environment

_WARMUP = "vllm.model_executor.warmup.kernel_warmup"
"""What `names.LeanStart` replaces, and what would load TorchInductor to warm it up."""


def import_vllm() -> None:
    """Import vLLM, set up to run within this process.

    Raises:
        InputError: it is not the version that lorarl was written for.
    """
    os.environ.update(environment())
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    with import_without_compiler():
        import vllm  # noqa: F401
    with compile_at_first_call():
        from vllm import LLM  # noqa: F401  # imported for the time that it takes: later imports find it

    names.require_version()


def bind_names(*, sleeps: bool) -> None:
    """Import the names that an engine on this device needs. `sleeps`: it gives memory up between rollouts.

    Raises:
        InputError: names every one that is missing, and its feature.
    """
    of_device = names.ON_GPU if names.on_gpu() else names.ON_CPU
    with stand_ins(_WARMUP), compile_at_first_call():
        names.bind(*names.ALWAYS, *of_device, *((names.SleepingMemory,) if sleeps else ()))
