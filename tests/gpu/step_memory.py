"""One worker that makes three steps, and reports what memory the last of them took, in a process by itself.

python step_memory.py MODEL FOLDER WORK, where WORK is JSON: `fields` of a manifest, `generated`, the most tokens of a
response (0: they are made up), and `gigabytes` of a smaller GPU, or null.

A second worker in the same process would use memory that the first one has left, and seem to take less.
vLLM allows one engine with memory that can sleep in a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lorarl_trainer.devices.cuda import CudaDevice

os.environ.update(CudaDevice().environment(threads=8))

import numpy as np
import torch

from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.critic import CriticUpdate
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.wire import Samples
from support.in_process import Colocated, made, samples_of, update_request, wanted

MEAN_LENGTH = 656
"""Tokens of a response that is made up, as in `bench_gpu.py --work ragged`."""
GB = 1_000_000_000
FREE = 0.97
"""Share of a smaller GPU that its driver calls free."""
BALLAST = """
import sys, torch
leave = int(sys.argv[1])
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - leave, dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def smaller_gpu(gigabytes: int | None) -> Iterator[None]:
    """Let this process have so many GB, and its worker see such a GPU; None is the GPU as it is.

    Another process holds the rest. torch has its own limit, but counts a KV cache that was given up.
    """
    if gigabytes is None:
        yield
        return
    free, total = torch.cuda.mem_get_info()
    leave = int(FREE * gigabytes * GB) - (total - free)
    command = [sys.executable, "-c", BALLAST, str(leave)]
    ballast = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert ballast.stdout is not None
        assert ballast.stdout.readline() == "held\n"
        with patch.object(CudaDevice, "memory", lambda _: smaller(gigabytes)):
            yield
    finally:
        ballast.communicate()  # the end of its input ends it


def smaller(gigabytes: int) -> Gpu:
    """Return a GPU of so many GB, with what is free beside the ballast."""
    return Gpu(gigabytes * GB, torch.cuda.mem_get_info()[0], "a smaller GPU", (8, 9))


def prompts_of(fields: dict[str, Any], stream: np.random.Generator) -> list[list[int]]:
    """Return the prompts of a step, each of the largest length."""
    length = fields["rollout__maxPromptTokens"]
    return [stream.integers(4, 60_000, length).tolist() for _ in range(fields["rollout__promptsPerStep"])]


def generated(worker: Colocated, fields: dict[str, Any], response: int, stream: np.random.Generator) -> list[Sample]:
    """Return the completions of a step, which vLLM has generated."""
    asked = [row for row in prompts_of(fields, stream) for _ in range(fields["algorithm__groupSize"])]
    return samples_of(asked, made(worker.worker, wanted(asked, range(len(asked)), max_tokens=response)))


def made_up(fields: dict[str, Any], stream: np.random.Generator) -> list[Sample]:
    """Return completions of very different lengths."""
    most, samples = fields["rollout__maxResponseTokens"], []
    for prompt in prompts_of(fields, stream):
        for length in np.minimum(stream.geometric(1 / MEAN_LENGTH, fields["algorithm__groupSize"]), most):
            tokens = np.concatenate([prompt, stream.integers(4, 60_000, length)])
            samples.append(Sample(tokens, len(prompt), 1.0, np.zeros(length, np.float32)))
    return samples


def main() -> None:
    model, folder, work = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    with smaller_gpu(work["gigabytes"]):
        report = step_memory(model, folder, work["fields"], work["generated"])
    Path(folder, "report.json").write_text(json.dumps(report))


def step_memory(model: Path, folder: Path, fields: dict[str, Any], longest: int) -> dict[str, Any]:
    """Make three steps; return what the last of them took, in GB."""
    worker = Colocated(model, folder, cluster__gpusPerNode=1, adapter__rank=32, **fields)
    assert worker.worker._plan is not None
    stream = np.random.default_rng(0)
    response = min(fields["rollout__maxResponseTokens"], longest)
    for _ in range(3):
        began = [time.perf_counter()]
        synced = worker.sync()
        samples = generated(worker, fields, response, stream) if response else made_up(fields, stream)
        began.append(time.perf_counter())
        critic = None
        if worker.worker.backend.critic is not None:
            values = worker.worker.values(Samples(samples))
            samples = [replace(one, values=of, returns=of + 1) for one, of in zip(samples, values, strict=True)]
            critic = CriticUpdate(learning_rate=1e-5, clip_range=10.0, alone=False)
        limits = AgreementLimits(tolerance=float("inf"))
        result = worker.worker.update(update_request(samples, learning_rate=1e-5, limits=limits, critic=critic))
        began.append(time.perf_counter())
    return {
        "taken": max(value for column, value in result.metrics.items() if column.startswith("gpu_memory/")),
        # torch keeps pieces of memory that no tensor needs. The plan has room for them, and they are not `taken`.
        "held": (worker.worker._watch._before - torch.cuda.mem_get_info()[0]) / 1e9,
        "planned": max(worker.worker._plan.peaks) / 1e9,
        "warnings": list(result.warnings),
        "seconds": {"generating": began[1] - began[0], "training": began[2] - began[1], "sync": synced},
        "retries": torch.cuda.memory_stats()["num_alloc_retries"],
        "plan": str(worker.built.memory),
    }


if __name__ == "__main__":
    main()
