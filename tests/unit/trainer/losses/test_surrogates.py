"""Every surrogate, ratio and aggregation: values against loops in NumPy, gradients against finite differences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_api.v1alpha1.algorithm_types import FROM_DATA
from lorarl_trainer.algorithms.registry import ALGORITHMS, get_algorithm
from lorarl_trainer.losses.base import LossInputs
from lorarl_trainer.losses.registry import compute_loss
from lorarl_trainer.losses.sequences import Sequences
from lorarl_trainer.samples.requests import LossChoice
from lorarl_trainer.samples.sample import Sample

LENGTHS = (1, 4, 2, 7)
LIMIT = 16
CPU = torch.device("cpu")


POLICY_GRADIENTS = sorted(ALGORITHMS.keys() - set(FROM_DATA))


def choice_of(kind: str, **fields: Any) -> LossChoice:
    return get_algorithm(AlgorithmSpec.model_validate({"type": kind, **fields}), LIMIT).loss


CHOICES = {
    **{kind: choice_of(kind) for kind in POLICY_GRADIENTS},
    "grpo, KL": choice_of("grpo", klCoefficient=0.3),
    "gspo, constant, KL": choice_of("gspo", lossAggregation="constant", klCoefficient=0.3),
    "cispo, by sequence": choice_of("cispo", lossAggregation="sequence_mean"),
    "wide gspo": choice_of("gspo", gspo={"clipRangeLow": 0.2, "clipRangeHigh": 0.5}),
}


class Batch:
    """Random values of ragged samples, in double precision. No ratio is so close to a clipping point as to cross it."""

    def __init__(self) -> None:
        stream = np.random.default_rng(3)
        tokens = sum(LENGTHS)
        self.logprobs, self.rollout, self.base = stream.normal(-1, 0.4, (3, tokens))
        self.advantages = np.repeat([1.5, -0.5, 0.7, -1.1], LENGTHS) + stream.normal(0, 0.2, tokens)

    def loss(self, choice: LossChoice, logprobs: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the normalized loss of the update, and the log-probabilities that it can be derived by."""
        values = torch.tensor(logprobs, requires_grad=True)
        whole = Sequences.of(LENGTHS, CPU)
        inputs = LossInputs(
            logprobs=values,
            measured=values.detach(),
            rollout=torch.tensor(self.rollout),
            advantages=torch.tensor(self.advantages),
            base=torch.tensor(self.base) if choice.kl_coefficient else None,
            on_policy=False,
            sequences=Sequences(whole.sample_of_N, whole.lengths_S.double()) if choice.by_sequence else None,
        )
        loss_N, _ = compute_loss(inputs, choice)
        return loss_N.sum() / choice.normalizer(sum(LENGTHS), len(LENGTHS)), values


def twin(batch: Batch, choice: LossChoice, logprobs: np.ndarray, weights_at: np.ndarray) -> float:
    """Return the loss, token by token. CISPO's weights are those at `weights_at`: they have no gradient."""
    ends = list(itertools.accumulate(LENGTHS))
    total = 0.0
    for start, end in zip([0, *ends], ends, strict=False):
        losses = []
        for t in range(start, end):
            tokens = range(start, end) if choice.ratio == "sequence" else (t,)
            ratio = math.exp(np.mean([logprobs[i] - batch.rollout[i] for i in tokens]))
            weight = math.exp(np.mean([weights_at[i] - batch.rollout[i] for i in tokens]))
            loss = -surrogate(choice, ratio, weight, batch.advantages[t], logprobs[t])
            log_ratio = batch.base[t] - logprobs[t]
            losses.append(loss + choice.kl_coefficient * (math.exp(log_ratio) - 1 - log_ratio))
        divisor = {
            "token_mean": sum(LENGTHS),
            "sequence_mean": len(LENGTHS) * len(losses),
            "constant": len(LENGTHS) * LIMIT,
        }
        total += sum(losses) / divisor[choice.aggregation]
    return total


def surrogate(choice: LossChoice, ratio: float, weight: float, advantage: float, logprob: float) -> float:
    high = choice.clip_range if choice.clip_range_high is None else choice.clip_range_high
    if choice.surrogate == "weighted":
        return min(weight, 1 + high) * advantage * logprob
    if choice.surrogate == "gated":
        t = choice.gate[0] if advantage > 0 else choice.gate[1]
        return 4 / t / (1 + math.exp(-t * (ratio - 1))) * advantage
    return min(ratio * advantage, max(1 - choice.clip_range, min(1 + high, ratio)) * advantage)


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())
def test_the_loss_is_that_of_the_formula(choice: LossChoice) -> None:
    batch = Batch()
    loss, _ = batch.loss(choice, batch.logprobs)
    assert loss.item() == pytest.approx(twin(batch, choice, batch.logprobs, batch.logprobs), rel=1e-6)


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())
def test_gradients_are_those_of_finite_differences(choice: LossChoice) -> None:
    batch = Batch()
    loss, values = batch.loss(choice, batch.logprobs)
    loss.backward()
    assert values.grad is not None
    expected = differences(lambda logprobs: twin(batch, choice, logprobs, batch.logprobs), batch.logprobs)
    np.testing.assert_allclose(values.grad.numpy(), expected, rtol=1e-4, atol=1e-7)


def differences(function: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-6) -> list[float]:
    steps = np.eye(len(at)) * step
    return [(function(at + one) - function(at - one)) / (2 * step) for one in steps]


def on_policy_inputs(advantages: Sequence[float], lengths: Sequence[int], choice: LossChoice) -> LossInputs:
    values = torch.linspace(-2, -0.1, sum(lengths)).requires_grad_()
    per_token = torch.tensor(np.repeat(np.asarray(advantages, np.float32), lengths))
    sequences = Sequences.of(lengths, CPU) if choice.by_sequence else None
    return LossInputs(values, values.detach(), values.detach() + 0.01, per_token, None, True, sequences)


@pytest.mark.parametrize("kind", POLICY_GRADIENTS)
def test_on_policy_every_surrogate_is_the_plain_policy_gradient(kind: str) -> None:
    choice = choice_of(kind, lossAggregation="token_mean")
    inputs = on_policy_inputs([1.0, -2.0], [2, 3], choice)
    loss_N, columns = compute_loss(inputs, choice)
    loss_N.sum().backward()
    assert inputs.logprobs.grad is not None
    torch.testing.assert_close(inputs.logprobs.grad, -inputs.advantages)
    assert not columns["clipped_share"].any()


@pytest.mark.parametrize("kind", POLICY_GRADIENTS)
def test_dropout_is_no_difference_between_policies(kind: str) -> None:
    """The gradient goes through the pass with dropout. The ratio is that of the passes without it."""
    choice = choice_of(kind, lossAggregation="token_mean")
    inputs = on_policy_inputs([1.0, -2.0], [200, 300], choice)
    plain, noise = inputs.logprobs, 0.05 * torch.randn(500, generator=torch.Generator().manual_seed(0))
    dropped = (plain.detach() + noise).requires_grad_()

    def gradient(given: LossInputs, by: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(compute_loss(replace(given, logprobs=by), choice)[0].sum(), by)[0]

    torch.testing.assert_close(gradient(inputs, dropped), -inputs.advantages)
    later = replace(inputs, on_policy=False, old=inputs.measured - 0.1)
    torch.testing.assert_close(gradient(later, dropped), gradient(later, plain))


@pytest.mark.parametrize("kind", POLICY_GRADIENTS)
def test_a_micro_batch_may_end_between_any_two_samples(kind: str) -> None:
    """The shares of a sample do not depend on what else is in its micro-batch, so neither does their sum."""
    choice = choice_of(kind)
    whole, _ = compute_loss(on_policy_inputs([1.0, -2.0], [2, 3], choice), choice)
    inputs = on_policy_inputs([1.0, -2.0], [2, 3], choice)
    parts = []
    for tokens, length in ((slice(0, 2), 2), (slice(2, 5), 3)):
        columns = (inputs.logprobs, inputs.measured, inputs.rollout, inputs.advantages)
        part = [column[tokens] for column in columns if column is not None]
        sequences = Sequences.of([length], CPU) if choice.by_sequence else None
        parts.append(compute_loss(LossInputs(*part, None, True, sequences), choice)[0])
    torch.testing.assert_close(torch.cat(parts), whole)


def test_a_worker_without_samples_has_a_loss_of_nothing() -> None:
    choice = choice_of("gspo")
    none = torch.zeros(0)
    loss, columns = compute_loss(LossInputs(none, none, none, none, None, True, Sequences.of([], CPU)), choice)
    assert loss.shape == (0,) and columns.keys() >= {"clipped_share", "entropy"}


def test_plain_policy_gradient_clips_nothing() -> None:
    choice = choice_of("reinforce")
    values = torch.tensor([5.0, -5.0]).requires_grad_()
    zeros = torch.zeros(2)
    inputs = LossInputs(values, values.detach(), zeros, torch.tensor([1.0, -1.0]), None, False)
    loss_N, columns = compute_loss(inputs, choice)
    torch.testing.assert_close(loss_N.detach(), -values.detach().exp() * torch.tensor([1.0, -1.0]))
    assert not columns["clipped_share"].any()


@pytest.mark.parametrize("kind", POLICY_GRADIENTS)
def test_a_sample_without_an_advantage_needs_no_backward_pass(kind: str) -> None:
    sample = Sample(np.arange(4), 2)
    assert not choice_of(kind).has_gradient(sample)
    assert choice_of(kind, klCoefficient=0.1).has_gradient(sample)
