"""Measures inside a worker: the adapter sync against the memory's speed, copies of the base, and sleep of the KV cache.

The worker is the product's own, without Ray. vLLM starts without CUDA graphs, on which no figure depends. Prints one
JSON object.

python -m side_by_side.device_side MODEL MANIFEST [PATH=VALUE ...]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

SYNCS, SWITCHES = 30, 5


def main() -> None:
    from lorarl_api.load import load_job
    from lorarl_trainer.devices.base import Device
    from lorarl_trainer.engine.vllm import arguments
    from lorarl_trainer.planning.execution import EnginePlan
    from lorarl_trainer.samples.requests import GenerationRequest
    from lorarl_trainer.workers.worker import Rank, Worker

    model, job = Path(sys.argv[1]), load_job(Path(sys.argv[2]), sys.argv[3:])
    worker = Worker(job.spec, Rank(0, 1, 0, None, None))

    usual = arguments.device_arguments

    def eager(device: Device, plan: EnginePlan) -> dict[str, Any]:
        return usual(device, plan) | {"enforce_eager": True}

    clock = time.perf_counter()
    with mock.patch.object(arguments, "device_arguments", eager):
        worker.start(model, (1,), None)
    started = time.perf_counter() - clock
    # A first generation, because some things are made on demand.
    worker.sync(1)
    worker.submit({at: GenerationRequest([5, 6, 7], seed=at) for at in range(8)})
    list(worker.results(8))
    walls = [worker.sync(version) for version in range(2, SYNCS + 2)]
    switches = [switch_seconds(worker) for _ in range(SWITCHES)]
    adapter = worker.backend.model.export()
    adapter_bytes = sum(t.numel() * t.element_size() for t in adapter.values())
    figures = {
        "startup_seconds": started,
        "sync_wall_ms": statistics.median(walls) * 1000,
        "sync_wall_ms_all": [wall * 1000 for wall in walls],
        "sync_gpu_ms": gpu_busy_ms(lambda: worker.sync(SYNCS + 2)),
        "sync_floor_ms": copy_ms(adapter_bytes),
        "adapter_bytes": adapter_bytes,
        "adapter_tensors": len(adapter),
        "base_copies": base_copies(worker),
        "sleep_seconds": statistics.median(sleep for sleep, _ in switches),
        "wake_seconds": statistics.median(wake for _, wake in switches),
    }
    print(json.dumps(figures), flush=True)


def switch_seconds(worker: Any) -> tuple[float, float]:
    """Return the seconds in which the engine gives up its KV cache, and takes it back."""
    import torch

    started = time.perf_counter()
    worker.engine.engine.sleep()
    torch.cuda.synchronize()
    asleep = time.perf_counter()
    worker.engine.engine.wake("weights", "kv_cache")
    torch.cuda.synchronize()
    return asleep - started, time.perf_counter() - asleep


def gpu_busy_ms(work: Callable[[], object]) -> float:
    """Return the milliseconds of kernels and copies on the GPU, without the gaps between them."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
    on_gpu = [event for event in seen.events() if event.device_type == DeviceType.CUDA]
    return float(sum(event.self_device_time_total for event in on_gpu) / 1000)


def copy_ms(count: int) -> float:
    """Return the milliseconds of one plain copy of so many bytes: the lower bound of a sync."""
    import torch

    source, target = (torch.zeros(count, dtype=torch.uint8, device="cuda") for _ in range(2))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(SYNCS):
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def base_copies(worker: Any) -> float:
    """Return the bytes of the base's parameters in trainer and vLLM together, over those of the trainer alone."""
    trainer = [parameter for _, parameter in worker.backend.model.base_parameters()]

    def of_vllm(rank: Any) -> list[Any]:
        return [parameter for name, parameter in rank.model_runner.model.named_parameters() if "lora" not in name]

    vllm = worker.engine.engine.llm_engine.collective_rpc(of_vllm)[0]
    return storage_bytes([*trainer, *vllm]) / storage_bytes(trainer)


def storage_bytes(tensors: list[Any]) -> int:
    """Return the bytes of the tensors. Shared ones count once."""
    return sum({tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors}.values())


if __name__ == "__main__":
    main()
