"""Engine and trainer in one process on one GPU, in bf16."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.requests import LOGPROB_DIFFERENCE
from support.in_process import Colocated, prompts, random_adapter, samples_of, update_request

MEAN_DIFFERENCE, KL = 0.02, 2e-3


@pytest.mark.parametrize(
    ("architecture", "adapter_type"),
    [
        ("qwen3-gpu", "canonical_lora"),
        ("qwen3-gpu", "lora"),
        ("qwen2-gpu", "canonical_lora"),
        ("llama-gpu", "canonical_lora"),
        ("qwen3_moe-gpu", "canonical_lora"),
        ("qwen3_moe-gpu", "lora"),
    ],
)
def test_rollout_and_trainer_agree_over_twenty_steps(on_gpu, architecture: str, adapter_type: str) -> None:
    worker: Colocated = on_gpu(architecture, adapter__type=adapter_type)
    worker.randomise(scale=0.02)
    base = worker.worker.backend.base_digest()
    worker.sync()
    for _ in range(20):
        samples = samples_of(prompts(64), worker.generate(prompts(64)))
        result = worker.worker.update(
            update_request(samples, learning_rate=1e-4, limits=AgreementLimits(tolerance=0.05))
        )
        assert result.disagreement is None
        assert result.metrics[LOGPROB_DIFFERENCE] < MEAN_DIFFERENCE and result.metrics["rollout_kl"] < KL
        worker.sync()
    assert worker.worker.backend.base_digest() == base


@pytest.mark.parametrize(("rank", "temperature"), [(8, 1.0), (32, 0.6), (128, 1.0)])
def test_they_agree_at_any_rank_and_temperature(on_gpu, rank: int, temperature: float) -> None:
    worker: Colocated = on_gpu(adapter__rank=rank, adapter__alpha=rank, rollout__temperature=temperature)
    worker.randomise(scale=0.02)
    worker.sync()
    samples = samples_of(prompts(64), rollouts := worker.generate(prompts(64)))
    trainer = worker.trainer_logprobs(samples, temperature)
    assert np.mean([np.abs(t - c.logprobs).mean() for t, c in zip(trainer, rollouts, strict=True)]) < MEAN_DIFFERENCE


@pytest.mark.parametrize("architecture", ["qwen3-gpu", "qwen3_moe-gpu"])
def test_tensor_and_disk_give_vllm_the_same_bits(on_gpu, architecture: str) -> None:
    buffers = []
    for transport in ("tensor", "disk"):
        worker: Colocated = on_gpu(architecture, rollout__adapterSync=transport)
        worker.randomise()
        worker.sync()
        buffers.append(worker.vllm_buffers())
    assert all(torch.equal(a, b) for a, b in zip(*buffers, strict=True))


def test_a_hundred_syncs_leave_gpu_memory_flat(on_gpu) -> None:
    worker: Colocated = on_gpu()
    adapters = [random_adapter(worker, seed) for seed in range(2)]

    def allocated_after(syncs: int) -> int:
        for index in range(syncs):
            worker.load(adapters[index % 2])
            worker.sync()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    assert allocated_after(100) == allocated_after(10)


def test_the_optimizer_keeps_what_bf16_would_lose(on_gpu) -> None:
    worker: Colocated = on_gpu()
    worker.randomise()
    worker.sync()
    before = [m.clone() for m in worker.worker.backend.optimizer.masters]
    for _ in range(3):
        samples = samples_of(prompts(16), worker.generate(prompts(16)))
        worker.worker.update(update_request(samples, learning_rate=1e-7, limits=AgreementLimits(tolerance=0.05)))
    after = worker.worker.backend.optimizer.masters
    assert all(m.dtype == torch.float32 for m in after)
    assert all(not torch.equal(a, b) for a, b in zip(after, before, strict=True))
