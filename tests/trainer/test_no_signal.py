"""Samples without a gradient: they cost no backward pass, and count in every metric as before."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lorarl_trainer.devices.cpu import CpuDevice
from lorarl_trainer.samples.requests import LossChoice
from lorarl_trainer.samples.sample import Sample
from support.tiny_models import VOCABULARY
from support.training import BareTrainer, grouped_samples, relative_difference

BUDGET = 60


@pytest.fixture
def backward_passes(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A list that grows by an entry with each backward pass."""
    made: list[None] = []
    backward = torch.Tensor.backward

    def counted(*arguments: object, **named: object) -> None:
        made.append(None)
        backward(*arguments, **named)

    monkeypatch.setattr(torch.Tensor, "backward", counted)
    return made


def mixed_samples(*, every: int = 2) -> list[Sample]:
    """Samples of which all but one in `every` have no advantage."""
    return [
        sample if index % every == 0 else replace(sample, advantage=0.0)
        for index, sample in enumerate(grouped_samples(VOCABULARY, prompts=8))
    ]


@pytest.mark.parametrize("packed", [True, False])
def test_gradient_and_metrics_are_those_of_a_backward_pass_over_all(
    model_folder, monkeypatch: pytest.MonkeyPatch, backward_passes: list[None], packed: bool
) -> None:
    samples = mixed_samples()
    trainer = BareTrainer(CpuDevice(), model_folder("qwen2"), "fp32", budget=BUDGET, packed=packed)
    metrics, gradients = trainer.metrics_and_gradients(samples)
    few = len(backward_passes)
    monkeypatch.setattr(LossChoice, "has_gradient", lambda choice, sample: True)
    expected_metrics, expected = trainer.metrics_and_gradients(samples)
    assert 0 < few < len(backward_passes) - few
    assert metrics == pytest.approx(expected_metrics, abs=1e-7)
    assert {"entropy", "rollout_kl", "mean_abs_logprob_diff"} < metrics.keys()
    assert relative_difference(gradients, expected) < 1e-6


def test_without_any_signal_no_backward_pass_is_made(model_folder, backward_passes: list[None]) -> None:
    trainer = BareTrainer(CpuDevice(), model_folder("qwen2"), "fp32", budget=BUDGET)
    samples = [replace(sample, advantage=0.0) for sample in mixed_samples()]
    metrics, gradients = trainer.metrics_and_gradients(samples)
    assert not backward_passes and not any(gradient.any() for gradient in gradients.values())
    assert metrics["loss"] == 0.0 and metrics["entropy"] > 0


@pytest.mark.parametrize("loss", [LossChoice("policy_gradient", 0.2, kl_coefficient=0.1), LossChoice("cross_entropy")])
def test_a_loss_that_does_not_need_an_advantage_trains_on_all(
    model_folder, backward_passes: list[None], loss: LossChoice
) -> None:
    trainer = BareTrainer(CpuDevice(), model_folder("qwen2"), "fp32", budget=BUDGET)
    samples = [replace(sample, advantage=0.0) for sample in mixed_samples()]
    _, gradients = trainer.metrics_and_gradients(samples, loss=loss, on_policy=False)
    assert len(backward_passes) == len(list(trainer.model.micro_batches(samples, BUDGET)))
    assert all(gradient.any() for gradient in gradients.values())


def test_dropout_leaves_samples_without_a_gradient_alone(model_folder) -> None:
    """Log-probabilities are measured without it, and so is the loss. The gradient of the other samples has it."""
    trainer = BareTrainer(CpuDevice(), model_folder("qwen2"), "fp32", dropout=0.5)
    kept = BareTrainer(CpuDevice(), model_folder("qwen2"), "fp32")
    samples = mixed_samples()
    dropped, by_dropped = trainer.metrics_and_gradients(samples)
    expected, by_kept = kept.metrics_and_gradients(samples)
    for name in ("entropy", "loss"):
        assert dropped[name] == pytest.approx(expected[name], abs=1e-6)
    assert relative_difference(by_dropped, by_kept) > 0.1
