"""The KL penalty's reference, penalties on rewards, and corrections: in whole runs with the real engine and trainer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.credit.reference import rewards_less_kl, with_old_logprobs
from lorarl_trainer.devices.cpu import CpuDevice
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.samples.requests import LossChoice
from support.in_process import Colocated, OneWorker, prompts, samples_of, worst
from support.loop_runs import run_in_process
from support.tiny_models import VOCABULARY
from support.training import BareTrainer, grouped_samples, relative_difference


@pytest.mark.parametrize("packed", [True, False])
def test_the_reference_may_be_the_adapter_of_the_start(model_folder, packed: bool) -> None:
    bare = BareTrainer(CpuDevice(), model_folder("qwen2"), "fp32", budget=150, packed=packed)
    samples = grouped_samples(VOCABULARY, prompts=6)
    of_base = bare.trainer.log_probabilities(samples, 0.8, "reference")
    started = bare.trainer.log_probabilities(samples, 0.8)
    assert worst(started, of_base) > 0.01
    bare.trainer.keep_reference()
    with torch.no_grad():
        for parameter in bare.model.parameters.values():
            parameter.mul_(0.5)
    moved = bare.trainer.log_probabilities(samples, 0.8)
    assert worst(moved, started) > 0.01
    np.testing.assert_array_equal(
        np.concatenate(bare.trainer.log_probabilities(samples, 0.8, "reference")), np.concatenate(started)
    )
    np.testing.assert_array_equal(np.concatenate(bare.trainer.log_probabilities(samples, 0.8)), np.concatenate(moved))


def test_a_penalty_in_the_loss_pulls_towards_the_start(model_folder) -> None:
    """With the policy at its start, k3 has no gradient; away from it, it has that of the difference."""
    bare = BareTrainer(CpuDevice(), model_folder("qwen2"), "fp32", budget=150, packed=True)
    samples = [replace(sample, advantage=0.0) for sample in grouped_samples(VOCABULARY, prompts=6)]
    choice = LossChoice("policy_gradient", 0.2, kl_coefficient=0.5)
    _, to_base = bare.loss_and_gradients(samples, loss=choice)
    bare.trainer.keep_reference()
    loss, at_start = bare.loss_and_gradients(samples, loss=choice)
    assert loss == 0.0 and not any(gradient.any() for gradient in at_start.values())
    with torch.no_grad():
        for parameter in bare.model.parameters.values():
            parameter.mul_(0.5)
    _, to_start = bare.loss_and_gradients(samples, loss=choice)
    assert relative_difference(to_start, to_base) > 0.1


def batch_of(worker: Colocated) -> StepBatch:
    """Four groups of two."""
    asked = [prompt for prompt in prompts() for _ in range(2)]
    samples = samples_of(asked, worker.generate(asked))
    return StepBatch(samples, np.ones((len(samples) // 2, 2)), worker.spec.rollout.temperature, on_policy=True)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_penalty_on_rewards_is_summed_over_the_completion(colocated, estimator: str) -> None:
    kl = f"{{placement: reward, estimator: {estimator}}}"
    worker: Colocated = colocated(algorithm=f"{{groupSize: 2, klCoefficient: 0.5, kl: {kl}}}")
    worker.randomise()
    worker.sync()
    batch = batch_of(worker)
    algorithm = get_algorithm(worker.spec.algorithm, 16)
    assert algorithm.loss.kl_coefficient == 0.0, "it is not in the loss too"
    rewards, metrics = asyncio.run(rewards_less_kl(OneWorker(worker.worker), algorithm, batch))
    base = worker.worker.log_probabilities(batch.samples_S, batch.temperature, "reference")
    policy = worker.trainer_logprobs(batch.samples_S)
    differences = [mine.astype(np.float64) - theirs for mine, theirs in zip(policy, base, strict=True)]
    of_token = {"k1": lambda d: d, "k2": lambda d: d * d / 2, "k3": lambda d: np.exp(-d) - 1 + d}[estimator]
    expected = np.array([1 - 0.5 * of_token(d).sum() for d in differences])
    np.testing.assert_allclose(rewards.reshape(-1), expected, atol=1e-4)
    k3 = np.concatenate([np.exp(-d) - 1 + d for d in differences])
    assert metrics["kl"] == pytest.approx(k3.mean(), abs=1e-5) and metrics["kl"] > 1e-3
    assert metrics["kl_penalty"] == pytest.approx(1 - expected.mean(), abs=1e-5)


def test_samples_of_later_updates_know_the_policy_before_the_first(colocated) -> None:
    worker: Colocated = colocated(
        algorithm="{groupSize: 2, updatesPerStep: 2, correction: {preset: decoupled_token_is}}",
        rollout__promptsPerStep=4,
    )
    worker.randomise()
    worker.sync()
    batch = batch_of(worker)
    algorithm = get_algorithm(worker.spec.algorithm, 16)
    found = asyncio.run(with_old_logprobs(OneWorker(worker.worker), algorithm, batch)).samples_S
    half = len(found) // 2
    assert all(sample.old_logprobs is None for sample in found[:half])
    old = [sample.old_logprobs for sample in found[half:]]
    assert worst(old, worker.trainer_logprobs(batch.samples_S[half:])) == 0.0


RUNS = {
    "penalty on rewards": "{groupSize: 4, klCoefficient: 0.1, kl: {placement: reward}}",
    "corrected twice": "{groupSize: 4, updatesPerStep: 2, correction: {preset: decoupled_geo_rs_token_tis}}",
    "gspo, corrected": "{type: gspo, groupSize: 4, updatesPerStep: 2, correction: {preset: decoupled_seq_is}}",
}


@pytest.mark.parametrize("algorithm", RUNS.values(), ids=RUNS.keys())
def test_a_run_has_the_metrics_of_its_penalty_and_correction(colocated, tmp_path: Path, algorithm: str) -> None:
    worker: Colocated = colocated(algorithm=algorithm, trainer__steps=3, trainer__learningRate=2e-2)
    worker.out = tmp_path
    worker.job.spec.checkpoint.__dict__["uri"] = f"file://{tmp_path}/checkpoints"
    steps = asyncio.run(run_in_process(worker))
    found = [step.metrics for step in steps]
    if "kl:" in algorithm:
        assert found[0]["kl"] == pytest.approx(0, abs=1e-6), "a new adapter changes nothing"
        assert found[-1]["kl"] > 1e-4 and found[-1]["kl_penalty"] != 0
        return
    # Engine and trainer agree, so there is nothing to correct. Without the old policy's own log-probabilities, later
    # updates would differ.
    assert columns(found, "correction/ratio") == pytest.approx(1, abs=1e-4)
    assert columns(found, "correction/effective_share") == pytest.approx(1, abs=1e-4)
    assert columns(found, "correction/masked_share") == 0


def columns(found: Sequence, name: str) -> float:
    return float(np.mean([metrics[name] for metrics in found]))
