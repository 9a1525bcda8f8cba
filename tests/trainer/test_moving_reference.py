"""A reference that follows the policy, and a penalty whose weight follows the divergence: values, and resuming."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.critic import CriticUpdate
from lorarl_trainer.samples.sample import Sample
from support.in_process import Colocated, random_adapter, samples_of, update_request, worst
from support.in_process import prompts as some_prompts
from support.loop_runs import adapter_digest, run_in_process

pytestmark = pytest.mark.both_backends

DECAY = 0.7


def penalised(colocated: Callable[..., Colocated], out: Path, kl: str, **changes: object) -> Colocated:
    out.mkdir(exist_ok=True)
    algorithm = f"{{groupSize: 4, klCoefficient: 0.2, kl: {{{kl}}}}}"
    worker: Colocated = colocated("qwen2-tied", algorithm=algorithm, **changes)
    worker.out = out
    worker.job.spec.checkpoint.__dict__["uri"] = f"file://{out}/checkpoints"  # frozen: only tests change it
    return worker


def test_the_reference_is_the_exponential_average_of_the_adapter(colocated, tmp_path: Path) -> None:
    worker = penalised(colocated, tmp_path, f"reference: average, decay: {DECAY}")
    worker.load(random_adapter(worker, seed=1))
    worker.sync()
    asked = [prompt for prompt in some_prompts(4) for _ in range(2)]
    samples = samples_of(asked, worker.generate(asked))
    average = {name: tensor.numpy().astype(np.float64) for name, tensor in worker.export().items()}
    for number in range(3):
        worker.worker.update(update_request(samples, learning_rate=3e-2, on_policy=number == 0, limits=None))
        for name, tensor in worker.export().items():
            average[name] = DECAY * average[name] + (1 - DECAY) * tensor.numpy()
    backend = worker.worker.backend
    gathered = backend.layout.gather(backend._trainer.averaged)
    assert gathered.keys() == average.keys()
    for name, expected in average.items():
        np.testing.assert_allclose(gathered[name].numpy(), expected, rtol=1e-4, atol=1e-6)
    of_reference = worker.worker.log_probabilities(samples, 1.0, "reference")
    policy = worker.trainer_logprobs(samples)
    assert worst(of_reference, policy) > 1e-3
    backend.hold(gathered)
    np.testing.assert_array_equal(np.concatenate(worker.trainer_logprobs(samples)), np.concatenate(of_reference))
    backend.hold(None)


def test_a_reference_that_follows_stays_while_the_adapter_does(
    colocated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = penalised(colocated, tmp_path, f"reference: average, decay: {DECAY}", algorithm__type="ppo")
    worker.load(random_adapter(worker, seed=1))
    worker.sync()
    samples = samples_of(some_prompts(4), worker.generate(some_prompts(4)))
    judged = [replace(one, values=np.zeros(one.trained_length), returns=np.ones(one.trained_length)) for one in samples]
    backend = worker.worker.backend
    trainer, optimizer, step = backend._trainer, backend.optimizer, backend._trainer.optim_step
    trainer.restore_average([torch.zeros_like(value) for value in trainer.averaged])  # so that following shows
    critic = CriticUpdate(learning_rate=1e-2, clip_range=1.0, alone=False)

    def follows(samples: Sequence[Sample] = judged, **changes: object) -> bool:
        worker.worker.update(update_request(samples, **{"critic": critic, "limits": None} | changes))
        return any(value.any() for value in trainer.averaged)

    def poisoned(rate: float) -> float:
        optimizer.gradients[0].view(-1)[0] = math.nan
        return step(rate)

    assert not follows(critic=replace(critic, alone=True)), "the critic learns alone"
    assert not follows([replace(one, advantage=math.inf) for one in judged]), "the loss is not a number"
    drifted = [replace(one, rollout_logprobs=one.rollout_logprobs - 1) for one in judged]
    assert not follows(drifted, limits=AgreementLimits(tolerance=1e-3)), "engine and trainer disagree"
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "optim_step", poisoned)
        assert not follows(), "the gradient is not a number"
    assert optimizer.updates == 0
    assert follows(), "an update that is made is followed"


@pytest.mark.parametrize("placement", ["loss", "reward"])
def test_average_and_weight_resume_with_the_same_bytes(colocated, tmp_path: Path, placement: str) -> None:
    kl = f"reference: average, decay: {DECAY}, target: 1.0e-6, placement: {placement}"
    settings = {"trainer__steps": 6, "trainer__learningRate": 2e-2}
    found = asyncio.run(run_in_process(penalised(colocated, tmp_path / "whole", kl, **settings)))
    weights = [step.metrics["kl_coefficient"] for step in found]
    assert weights[0] == 0.2 and weights[-1] != weights[2], weights
    parts = []
    for stop_after in (3, None):
        worker = penalised(colocated, tmp_path / "parts", kl, **settings)
        parts += asyncio.run(run_in_process(worker, stop_after=stop_after))
    assert [step.metrics["kl_coefficient"] for step in parts] == weights
    assert adapter_digest(tmp_path / "parts") == adapter_digest(tmp_path / "whole")
