"""The critic on one GPU, in bf16: it learns beside the policy, on the one base. `test_memory_plan` has its memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.critic import CriticUpdate
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.wire import Samples
from support.in_process import Colocated, prompts, samples_of, update_request

PPO = {"algorithm": "{type: ppo, groupSize: 4}"}
UPDATE = CriticUpdate(learning_rate=1e-3, clip_range=10.0, alone=False)


def drawn(worker: Colocated, count: int = 64) -> list[Sample]:
    """Samples whose return is the share of small tokens in the prompt, which a critic can see."""
    asked = prompts(count)
    returns = [float(np.mean(np.array(prompt) < 32)) for prompt in asked]
    return [
        replace(
            sample,
            values=np.zeros(sample.response_length, np.float32),
            returns=np.full(sample.response_length, target, np.float32),
        )
        for sample, target in zip(samples_of(asked, worker.generate(asked)), returns, strict=True)
    ]


@pytest.mark.parametrize("backend", ["megatron", "fsdp"], indirect=True)
def test_the_critic_learns_and_leaves_the_base_as_it_is(on_gpu, backend: str) -> None:
    worker: Colocated = on_gpu("qwen2-gpu", **PPO)
    worker.randomise(scale=0.02)
    worker.sync()
    trained = worker.worker.backend
    base, samples = trained.base_digest(), drawn(worker)
    limits = AgreementLimits(tolerance=0.05)
    request = update_request(samples, learning_rate=1e-6, limits=limits, on_policy=False, critic=UPDATE)
    losses = [worker.worker.update(request).metrics["critic/loss"] for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
    assert trained.base_digest() == base
    assert all(master.dtype == torch.float32 for master in trained.critic.optimizer.masters)
    values = worker.worker.values(Samples(samples))
    again = worker.worker.values(Samples(samples))
    np.testing.assert_array_equal(np.concatenate(values), np.concatenate(again))
