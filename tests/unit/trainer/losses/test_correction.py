"""Truncated and masked importance sampling, against loops in NumPy; and what a whole loss makes of it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from lorarl_api.v1alpha1.algorithm_options import CorrectionSpec
from lorarl_trainer.losses.base import LossInputs
from lorarl_trainer.losses.correction import importance_weights
from lorarl_trainer.losses.policy_gradient import k3
from lorarl_trainer.losses.registry import compute_loss, finished
from lorarl_trainer.losses.sequences import Sequences
from lorarl_trainer.samples.correction import PRESETS, Correction
from lorarl_trainer.samples.requests import LossChoice

LENGTHS = (1, 4, 2, 7, 3)
CPU = torch.device("cpu")
CORRECTIONS = {
    **PRESETS,
    "tokens from 0.7 to 1.4": Correction(mask="token", low=0.7, high=1.4),
    "sequences from 0.4 to 3": Correction("sequence", 1.5, "sequence", 0.4, 3.0),
    "geometric": Correction("token", 1.1, "geometric", 0.95, 1.05),
}


def log_ratios() -> np.ndarray:
    """Of ragged sequences: one hardly differs from 1, so that a narrow mask lets something through."""
    values = np.random.default_rng(1).normal(0, 0.4, sum(LENGTHS))
    values[1:5] *= 1e-4
    return values.astype(np.float32)


def twin(log_ratio_N: np.ndarray, correction: Correction) -> tuple[list[float], list[bool], list[bool]]:
    """Return the weight of each token, whether it was cut, and whether it is masked."""
    ends = list(itertools.accumulate(LENGTHS))
    weights, cut, masked = [], [], []
    for start, end in zip([0, *ends], ends, strict=False):
        ratios = [math.exp(value) for value in log_ratio_N[start:end]]
        product = math.prod(ratios)
        for ratio in ratios:
            of_level = {"token": ratio, "sequence": product, "geometric": product ** (1 / len(ratios)), None: 1.0}
            outside = correction.mask is not None and not correction.low <= of_level[correction.mask] <= correction.high
            weight = of_level[correction.weights]
            cut.append(correction.weights is not None and weight > correction.max_weight)
            masked.append(outside)
            weights.append(0.0 if outside else min(weight, correction.max_weight))
    return weights, cut, masked


@pytest.mark.parametrize("correction", CORRECTIONS.values(), ids=CORRECTIONS.keys())
def test_weights_and_metrics_are_those_of_the_formula(correction: Correction) -> None:
    values = log_ratios()
    weight_N, columns = importance_weights(torch.tensor(values), correction, Sequences.of(LENGTHS, CPU))
    weights, cut, masked = twin(values, correction)
    np.testing.assert_allclose(weight_N.numpy(), weights, rtol=1e-5)
    metrics = finished({name: column.double().mean().item() for name, column in columns.items()})
    assert metrics["correction/ratio"] == pytest.approx(np.exp(values).mean(), rel=1e-6)
    assert metrics["correction/clipped_share"] == pytest.approx(np.mean(cut), rel=1e-6)
    assert metrics["correction/masked_share"] == pytest.approx(np.mean(masked), rel=1e-6)
    assert metrics["correction/weight"] == pytest.approx(np.mean(weights), rel=1e-6)
    effective = sum(weights) ** 2 / sum(weight**2 for weight in weights) / len(weights)
    assert metrics["correction/effective_share"] == pytest.approx(effective, rel=1e-5)
    assert "correction/weight_squared" not in metrics


def test_equal_policies_need_no_correction() -> None:
    for correction in CORRECTIONS.values():
        weight_N, columns = importance_weights(torch.zeros(17), correction, Sequences.of(LENGTHS, CPU))
        assert (weight_N == 1).all() and not columns["correction/masked_share"].any()


def test_when_all_is_masked_the_effective_share_is_zero() -> None:
    correction = Correction(mask="token", low=0.9, high=1.1)
    weight_N, columns = importance_weights(torch.full((17,), 5.0), correction, None)
    assert not weight_N.any()
    means = {name: column.mean().item() for name, column in columns.items()}
    assert finished(means)["correction/effective_share"] == 0.0


def test_a_long_sequence_of_large_ratios_stays_finite() -> None:
    sequences = Sequences.of([1000], CPU)
    for log_ratio in (-1.0, 1.0):
        weight_N, columns = importance_weights(torch.full((1000,), log_ratio), Correction("sequence"), sequences)
        assert weight_N.isfinite().all() and all(column.isfinite().all() for column in columns.values())


@pytest.mark.parametrize("on_policy", [True, False])
def test_a_correction_weighs_the_loss_by_the_old_policys_ratio(on_policy: bool) -> None:
    """On policy, the old policy is the one that is trained. It is not the engine's in either case."""
    stream = torch.Generator().manual_seed(0)
    new, rollout, advantages, base, old = (torch.randn(17, generator=stream) * 0.3 for _ in range(5))
    values = new.requires_grad_()
    choice = LossChoice("policy_gradient", 0.2, kl_coefficient=0.1, correction=Correction("token"))
    inputs = LossInputs(values, new.detach(), rollout, advantages, base, on_policy, old=None if on_policy else old)
    loss_N, columns = compute_loss(inputs, choice)
    before = new.detach() if on_policy else old
    weight_N = (before - rollout).exp().clamp(max=2.0)
    ratio_N = (new - before).exp()
    surrogate_N = -torch.minimum(ratio_N * advantages, ratio_N.clamp(0.8, 1.2) * advantages)
    log_ratio_N = base - new
    torch.testing.assert_close(loss_N, surrogate_N * weight_N + 0.1 * (log_ratio_N.exp() - 1 - log_ratio_N))
    (gradient,) = torch.autograd.grad(loss_N.sum(), values, retain_graph=True)
    penalty = 0.1 * (1 - log_ratio_N.exp())
    (plain,) = torch.autograd.grad(surrogate_N.sum(), values)
    torch.testing.assert_close(gradient, plain * weight_N + penalty, msg="the weight has no gradient")
    assert columns["correction/ratio"].mean() == pytest.approx((before - rollout).exp().mean().item())


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("mask", ["token", "sequence", "geometric"])
def test_a_masked_token_trains_by_nothing(mask: str, estimator: str) -> None:
    stream = torch.Generator().manual_seed(0)
    new, advantages, base = (torch.randn(17, generator=stream) * 0.3 for _ in range(3))
    rollout, values = new - torch.tensor(log_ratios()), new.clone().requires_grad_()
    correction = Correction(mask=mask, low=0.98, high=1.02)  # type: ignore[arg-type]
    choice = LossChoice("policy_gradient", 0.2, 0.1, kl_estimator=estimator, correction=correction)  # type: ignore[arg-type]
    loss_N, columns = compute_loss(
        LossInputs(values, new, rollout, advantages, base, on_policy=True, sequences=Sequences.of(LENGTHS, CPU)), choice
    )
    (gradient,) = torch.autograd.grad(loss_N.sum(), values)
    masked = columns["correction/masked_share"] > 0
    assert masked.any() and not masked.all()
    assert not gradient[masked].any() and not loss_N[masked].any(), "neither by the advantage nor by the KL penalty"
    plain = LossChoice("policy_gradient", 0.2, 0.1, kl_estimator=estimator)  # type: ignore[arg-type]
    all_train, _ = compute_loss(LossInputs(values, new, rollout, advantages, base, on_policy=True), plain)
    (expected,) = torch.autograd.grad(all_train.sum(), values)
    torch.testing.assert_close(gradient[~masked], expected[~masked])
    torch.testing.assert_close(columns["kl"], k3(new, base), msg="the divergence is of all tokens")


def test_a_job_may_name_a_preset_or_fields() -> None:
    assert Correction.of(CorrectionSpec(preset="decoupled_seq_is")) == Correction("sequence", 2.0)
    fields = CorrectionSpec(weights="token", max_weight=3.0, mask="geometric", mask_low=0.9, mask_high=1.2)
    assert Correction.of(fields) == Correction("token", 3.0, "geometric", 0.9, 1.2)
