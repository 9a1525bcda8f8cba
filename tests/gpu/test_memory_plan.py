"""What a step takes of a GPU's memory: never more than planned, and at most a tenth less if micro-batches are full."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.critic import CriticUpdate
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.wire import Samples
from support.in_process import Colocated, made, samples_of, update_request, wanted

GB = 1_000_000_000
LONG_PROMPTS = {
    "algorithm__groupSize": 16,
    "rollout__promptsPerStep": 8,
    "rollout__maxPromptTokens": 4096,
    "rollout__maxResponseTokens": 256,
}
FULL = {
    "algorithm__groupSize": 8,
    "rollout__promptsPerStep": 32,
    "rollout__maxPromptTokens": 256,
    "rollout__maxResponseTokens": 224,  # 8 groups are a micro-batch of 16,384 tokens
    "trainer__tokensPerMicroBatch": 16_384,
}
LONGEST_CACHE = FULL | {"rollout__maxResponseTokens": 16_000, "trainer__tokensPerMicroBatch": 16_384}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("1.5B", FULL),
        ("7B", FULL | {"rollout__offload": "[]"}),
        ("7B", FULL | {"rollout__offload": "[kv_cache]"}),
        ("7B", FULL | {"trainer__recompute": "selective"}),
        ("7B", FULL | {"trainer__recompute": "full"}),
        ("7B", FULL | {"adapter__dropout": 0.1, "trainer__tokensPerMicroBatch": 8192}),
        ("7B", FULL | {"algorithm__type": "ppo"}),
        ("A3B", FULL | {"rollout__maxResponseTokens": 256}),
        ("A3B", FULL | {"rollout__maxResponseTokens": 256, "trainer__recompute": "selective"}),
        ("7B", LONG_PROMPTS),
        ("7B", LONGEST_CACHE),  # its cache takes all that is free
    ],
)
def test_a_step_takes_what_was_planned(
    name: str, fields: dict[str, Any], shape: Callable[[str], Path], tmp_path: Path
) -> None:
    worker = Colocated(shape(name), tmp_path, cluster__gpusPerNode=1, adapter__rank=32, **fields)
    assert worker.worker._plan is not None
    group, prompts = fields["algorithm__groupSize"], fields["rollout__promptsPerStep"]
    stream = np.random.default_rng(0)
    rows = [stream.integers(4, 60_000, fields["rollout__maxPromptTokens"]).tolist() for _ in range(prompts)]
    asked = [row for row in rows for _ in range(group)]
    response = min(fields["rollout__maxResponseTokens"], 256)
    for _ in range(3):
        began = [time.perf_counter()]
        synced = worker.sync()
        samples = samples_of(asked, made(worker.worker, wanted(asked, range(len(asked)), max_tokens=response)))
        began.append(time.perf_counter())
        critic = None
        if worker.worker.backend.critic is not None:
            values = worker.worker.values(Samples(samples))
            samples = [replace(one, values=of, returns=of + 1) for one, of in zip(samples, values, strict=True)]
            critic = CriticUpdate(learning_rate=1e-5, clip_range=10.0, alone=False)
        limits = AgreementLimits(tolerance=float("inf"))
        result = worker.worker.update(update_request(samples, learning_rate=1e-5, limits=limits, critic=critic))
        began.append(time.perf_counter())
    planned = max(worker.worker._plan.peaks)
    taken = max(value * GB for column, value in result.metrics.items() if column.startswith("gpu_memory/"))
    generating, training = began[1] - began[0], began[2] - began[1]
    print(f"\n{name}: took {taken / GB:.1f} GB, planned {planned / GB:.1f}\n{worker.built.memory}")
    print(f"last step: generating {generating:.2f} s, training {training:.2f} s, sync {1000 * synced:.2f} ms")
    assert result.warnings == () and taken <= planned
    if response == fields["rollout__maxResponseTokens"]:
        # torch keeps pieces of memory that no tensor needs. The plan has room for them, and they are not `taken`.
        held = worker.worker._watch._before - torch.cuda.mem_get_info()[0]
        assert max(taken, held) >= 0.9 * planned
    worker.close()
    torch.cuda.empty_cache()


@pytest.mark.long
def test_answers_of_very_different_lengths_take_no_more(shape: Callable[[str], Path], tmp_path: Path) -> None:
    """No two micro-batches have the same size, and the KV cache has all that is free: `bench_gpu.py --work ragged`."""
    fields = {
        "algorithm__groupSize": 16,
        "rollout__promptsPerStep": 32,
        "rollout__maxPromptTokens": 256,
        "rollout__maxResponseTokens": 4096,
    }
    worker = Colocated(shape("7B"), tmp_path, cluster__gpusPerNode=1, adapter__rank=32, **fields)
    assert worker.worker._plan is not None
    stream = np.random.default_rng(0)
    for _ in range(3):
        samples = []
        for _ in range(fields["rollout__promptsPerStep"]):
            prompt = stream.integers(4, 60_000, fields["rollout__maxPromptTokens"])
            lengths = np.minimum(stream.geometric(1 / 656, fields["algorithm__groupSize"]), 4096)
            answers = [stream.integers(4, 60_000, length) for length in lengths]
            samples += [
                Sample(np.concatenate([prompt, answer]), len(prompt), 1.0, np.zeros(len(answer), np.float32))
                for answer in answers
            ]
        began = time.perf_counter()
        limits = AgreementLimits(tolerance=float("inf"))
        result = worker.worker.update(update_request(samples, learning_rate=1e-5, limits=limits))
        seconds = time.perf_counter() - began
    statistics, planned = torch.cuda.memory_stats(), max(worker.worker._plan.peaks)
    taken = result.metrics["gpu_memory/training"] * GB
    print(
        f"\ntook {taken / GB:.1f} GB, planned {planned / GB:.1f}; {torch.cuda.memory_reserved() / GB:.1f} GB reserved"
    )
    print(f"last update {seconds:.2f} s; {statistics['num_alloc_retries']} allocations found no room at first")
    assert result.warnings == () and taken <= planned
    worker.close()
    torch.cuda.empty_cache()
