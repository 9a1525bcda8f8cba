"""Where the time of a decode step goes: the host's work by part, and the GPU's by kind of kernel."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

KINDS = (
    ("attention", r"flash|fmha|attention|reshape_and_cache"),
    ("LoRA (Punica)", r"lora_shrink|lora_expand"),
    ("sampler", r"gumbel|topk_log_softmax|ranks_kernel|argmax|temperature_kernel|_sum_blocks|_draw"),
    ("products", r"gemm|cutlass|nvjet|xmma|splitK|sm90_|cublas"),
    ("norm, activation, rope", r"rms|norm|silu|act_and_mul|rotary|triton_"),
    ("copies", r"memcpy|memset"),
)


LONG_GAP_NS = 10_000
"""A longer gap between two kernels is the host's. Within a CUDA graph they are about a microsecond apart."""


def host_times(engine: Any, options: argparse.Namespace, generate: Callable[[], list[Any]]) -> dict[str, float]:
    """Return milliseconds per decode step for each part of the host's work.

    `wait` waits for the GPU. If it is near 0, the host limits the speed.
    """
    from vllm.v1.worker.gpu.async_utils import AsyncOutput

    core = engine.llm_engine.engine_core.engine_core
    runner = engine.vllm_worker.model_runner
    places = {
        "add_request": (core, "add_request"),
        "step": (core, "step_fn"),
        "schedule": (core.scheduler, "schedule"),
        "execute_model": (core.model_executor, "execute_model"),
        "sample_tokens": (core.model_executor, "sample_tokens"),
        "wait": (torch.cuda.Event, "synchronize"),
        "get_output": (AsyncOutput, "get_output"),
        "update_from_output": (core.scheduler, "update_from_output"),
    }
    # Parts of execute_model and sample_tokens.
    within = {
        "update_requests": (runner, "update_requests"),
        "prepare_inputs": (runner, "prepare_inputs"),
        "prepare_attn": (runner, "prepare_attn"),
        "attention metadata": (runner.model_state, "prepare_attn"),
        "graph": (runner.cudagraph_manager, "run_fullgraph"),
        "logits": (runner.model, "compute_logits"),
        "sampler": (type(runner.sampler), "__call__"),
        "copies": (AsyncOutput, "__init__"),
        "postprocess": (runner, "postprocess_sampled"),
    }
    spent: dict[str, float] = defaultdict(float)

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timer(*arguments: Any, **keywords: Any) -> Any:
            clock = time.perf_counter()
            try:
                return call(*arguments, **keywords)
            finally:
                spent[name] += time.perf_counter() - clock

        return timer

    with contextlib.ExitStack() as stack:
        for name, (owner, attribute) in (places | within).items():
            stack.enter_context(mock.patch.object(owner, attribute, timed(name, getattr(owner, attribute))))
        requests = len(timed("generate", generate)())
    spent["get_output"] -= spent["wait"]
    details = {name: 1e3 * spent.pop(name, 0.0) / options.tokens for name in within}
    total, step = spent.pop("generate"), spent.pop("step")
    adding = spent.pop("add_request")
    print(f"  host: {total:.2f} s in all, of which {1e3 * adding:.0f} ms to add {requests} requests")
    spent["rest of step"] = step - sum(spent.values())
    ms = {name: 1e3 * seconds / options.tokens for name, seconds in spent.items()}
    print(
        "  a step, ms: "
        + ", ".join(f"{name} {value:.2f}" for name, value in ms.items())
        + f"; in all {1e3 * step / options.tokens:.2f}"
    )
    print(
        "  within execute_model and sample_tokens: "
        + ", ".join(f"{name} {value:.2f}" for name, value in details.items()),
        flush=True,
    )
    return ms | details | {"add_requests_in_all": 1e3 * adding}


def kernel_times(engine: Any, generate: Callable[[], Any], first: int, steps: int) -> dict[str, Any]:
    """Return the GPU's busy share and its time by kind of kernel, over some decode steps in the middle of a run.

    The profiler makes each kernel of a graph a little slower. Idle time is parted by the length of the gaps.
    """
    core = engine.llm_engine.engine_core.engine_core
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    step, count = core.step_fn, 0

    def counted() -> Any:
        nonlocal count
        count += 1
        if count == first:
            profiler.start()
        if count == first + steps:
            torch.cuda.synchronize()
            profiler.stop()
        return step()

    with mock.patch.object(core, "step_fn", counted):
        generate()
    spans = []
    names: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in profiler.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA and event.duration_ns():
            spans.append((event.start_ns(), event.start_ns() + event.duration_ns()))
            names[event.name()] += event.duration_ns()
            calls[event.name()] += 1
    spans.sort()
    busy, reached, long_gaps = 0, spans[0][0], 0
    for begin, end in spans:
        busy += max(0, end - max(begin, reached))
        long_gaps += begin - reached if begin - reached > LONG_GAP_NS else 0
        reached = max(reached, end)
    wall = reached - spans[0][0]
    kinds: Counter[str] = Counter()
    for name, duration in names.items():
        kinds[next((kind for kind, pattern in KINDS if re.search(pattern, name, re.IGNORECASE)), "other")] += duration
    scale = 1e-6 / steps
    print(
        f"  GPU over {steps} steps: {wall * scale:.2f} ms a step, busy {100 * busy / wall:.1f}%, "
        f"idle {(wall - busy - long_gaps) * scale:.2f} ms between kernels and {long_gaps * scale:.2f} ms for the host; "
        f"{sum(calls.values()) / steps:.0f} kernels and copies"
    )
    print(
        "  by kind, ms a step: " + ", ".join(f"{kind} {duration * scale:.2f}" for kind, duration in kinds.most_common())
    )
    for name, duration in names.most_common(25):
        print(f"    {duration * scale:7.3f} ms {calls[name] / steps:6.1f} x  {name[:130]}")
    sys.stdout.flush()
    return {
        "ms_a_step": wall * scale,
        "busy": busy / wall,
        "host_gaps_ms": long_gaps * scale,
        "kernels": sum(calls.values()) / steps,
        "kinds_ms": {kind: duration * scale for kind, duration in kinds.items()},
        "kernels_ms": {name[:200]: [duration * scale, calls[name] / steps] for name, duration in names.most_common(40)},
    }
