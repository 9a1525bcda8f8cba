"""One worker that makes three steps, and prints what memory the last of them took, in a process by itself.

Started by test_memory_plan.py: python step_memory.py MODEL FOLDER FIELDS, where FIELDS are those of a manifest, as
JSON. A second worker in the same process would use memory that the first one has left, and seem to take less.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from lorarl_trainer.devices.cuda import CudaDevice

os.environ.update(CudaDevice().environment(threads=8))

import numpy as np
import torch

from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.critic import CriticUpdate
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.wire import Samples
from support.in_process import Colocated, made, samples_of, update_request, wanted

GENERATED = 256
"""Tokens of a response at most. Longer ones are made up, since generating them would take minutes."""
MEAN_LENGTH = 656
"""Tokens of a response that is made up, as in `bench_gpu.py --work ragged`."""


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
    model, folder, fields = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    ragged = fields.pop("ragged", False)
    worker = Colocated(model, folder, cluster__gpusPerNode=1, adapter__rank=32, **fields)
    assert worker.worker._plan is not None
    stream = np.random.default_rng(0)
    response = min(fields["rollout__maxResponseTokens"], GENERATED)
    for _ in range(3):
        began = [time.perf_counter()]
        synced = worker.sync()
        samples = made_up(fields, stream) if ragged else generated(worker, fields, response, stream)
        began.append(time.perf_counter())
        critic = None
        if worker.worker.backend.critic is not None:
            values = worker.worker.values(Samples(samples))
            samples = [replace(one, values=of, returns=of + 1) for one, of in zip(samples, values, strict=True)]
            critic = CriticUpdate(learning_rate=1e-5, clip_range=10.0, alone=False)
        limits = AgreementLimits(tolerance=float("inf"))
        result = worker.worker.update(update_request(samples, learning_rate=1e-5, limits=limits, critic=critic))
        began.append(time.perf_counter())
    report = {
        "taken": max(value for column, value in result.metrics.items() if column.startswith("gpu_memory/")),
        # torch keeps pieces of memory that no tensor needs. The plan has room for them, and they are not `taken`.
        "held": (worker.worker._watch._before - torch.cuda.mem_get_info()[0]) / 1e9,
        "planned": max(worker.worker._plan.peaks) / 1e9,
        "warnings": list(result.warnings),
        "seconds": {"generating": began[1] - began[0], "training": began[2] - began[1], "sync": synced},
        "retries": torch.cuda.memory_stats()["num_alloc_retries"],
        "plan": str(worker.built.memory),
    }
    Path(folder, "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
