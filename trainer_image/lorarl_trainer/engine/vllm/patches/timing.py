"""Where the time of vLLM's start goes: its worker's methods, timed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from lorarl_trainer.engine.vllm.patches.start import replaced
from lorarl_trainer.timing import StartClock

WORKER_PARTS = {
    "init_device": "device",
    "load_model": "load",
    "determine_available_memory": "trial run",  # at full size
    "initialize_from_config": "KV cache",
    "compile_or_warm_up_model": "warm-up",
}
"""Methods of vLLM's worker, and what the part of the start is called."""


@contextlib.contextmanager
def timed_start(clock: StartClock) -> Iterator[None]:
    """Let `clock` take the parts of the vLLM engine that is started within, as engine/..."""
    from vllm.platforms import current_platform
    from vllm.utils.import_utils import resolve_obj_by_qualname

    kind = "cpu_worker.CPUWorker" if current_platform.is_cpu() else "gpu_worker.Worker"
    worker = resolve_obj_by_qualname(f"vllm.v1.worker.{kind}")
    with contextlib.ExitStack() as stack:
        for method, name in WORKER_PARTS.items():
            owner = next(each for each in worker.__mro__ if method in vars(each))
            stack.enter_context(replaced(owner, method, _timed(clock, name, vars(owner)[method])))
        if current_platform.is_cuda():
            from vllm.v1.worker.gpu.model_runner import GPUModelRunner

            stack.enter_context(
                replaced(GPUModelRunner, "capture_model", _timed(clock, "warm-up/graphs", GPUModelRunner.capture_model))
            )
        yield


def _timed(clock: StartClock, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*arguments: Any, **options: Any) -> Any:
        with clock.part(f"engine/{name}"):
            return function(*arguments, **options)

    return timed
