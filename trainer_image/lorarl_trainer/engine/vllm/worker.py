"""The worker that vLLM starts for an engine (`worker_cls`): vLLM's own for this device, with its start timed.

Import this module only after vLLM has been set up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from lorarl_trainer.engine.vllm import names, slices
from lorarl_trainer.engine.vllm.patches.sampler import keep_parts_of_logits
from lorarl_trainer.engine.vllm.routing import RoutingRecorder, start_recording
from lorarl_trainer.timing import StartClock

_CLOCK: ContextVar[StartClock | None] = ContextVar("clock of the engine that is starting", default=None)
_VllmWorker: Any = names.GpuWorker.Worker if names.on_gpu() else names.CpuWorker.Worker


@contextmanager
def timed_start(clock: StartClock) -> Iterator[None]:
    """Let `clock` take the spans of the engine that starts within the block, as engine/..."""
    token = _CLOCK.set(clock)  # vLLM makes the worker itself, and passes nothing on
    try:
        yield
    finally:
        _CLOCK.reset(token)


class RolloutWorker(_VllmWorker):
    """vLLM's worker in this process."""

    model_runner: slices.ModelRunner
    device: Any
    vllm_config: Any
    routing: RoutingRecorder | None = None
    """Which experts tokens are sent to, if the engine records that."""

    def init_device(self, *arguments: Any, **options: Any) -> Any:
        """See vLLM's worker."""
        with _span("device"):
            return super().init_device(*arguments, **options)

    def load_model(self, *arguments: Any, **options: Any) -> None:
        """See vLLM's worker."""
        with _span("load"):
            super().load_model(*arguments, **options)
            if names.on_gpu():
                keep_parts_of_logits(self.model_runner)

    def determine_available_memory(self, *arguments: Any, **options: Any) -> Any:
        """See vLLM's worker: a step at full size.

        A CPU has nothing to compile, and the plan knows the cache's size. There the step would only take its time: 12 s
        of SmolLM2's start.
        """
        if not names.on_gpu():
            return self.vllm_config.cache_config.kv_cache_memory_bytes
        with _span("trial run"):
            return super().determine_available_memory(*arguments, **options)

    def initialize_from_config(self, kv_cache_config: slices.KVCacheConfig) -> Any:
        """See vLLM's worker."""
        with _span("KV cache"):
            made = super().initialize_from_config(kv_cache_config)
            self.routing = start_recording(self.model_runner.model, kv_cache_config, self.device)
            return made

    def compile_or_warm_up_model(self, *arguments: Any, **options: Any) -> Any:
        """See vLLM's worker. On a GPU, its model runner captures CUDA graphs within."""
        capture = self.model_runner.capture_model

        def timed_capture(*given: Any, **also: Any) -> Any:
            with _span("warm-up/graphs"):
                return capture(*given, **also)

        with _span("warm-up"):
            self.model_runner.capture_model = timed_capture
            try:
                return super().compile_or_warm_up_model(*arguments, **options)
            finally:
                del self.model_runner.capture_model


def _span(name: str) -> AbstractContextManager[None]:
    clock = _CLOCK.get()
    return nullcontext() if clock is None else clock.part(f"engine/{name}")
