"""The loss of preference pairs against the formula in NumPy, and its gradient against finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.losses.base import LossInputs
from lorarl_trainer.losses.registry import compute_loss
from lorarl_trainer.losses.sequences import Sequences
from lorarl_trainer.samples.requests import LossChoice

LENGTHS = (1, 4, 2, 7, 3, 3)
CPU = torch.device("cpu")


def choice_of(**options: float) -> LossChoice:
    return get_algorithm(AlgorithmSpec.model_validate({"type": "dpo", "dpo": options}), 16).loss


def inputs_of(logprobs: torch.Tensor, base: torch.Tensor, lengths: tuple[int, ...] = LENGTHS) -> LossInputs:
    whole = Sequences.of(lengths, CPU)
    sequences = Sequences(whole.sample_of_N, whole.lengths_S.to(logprobs.dtype))
    return LossInputs(logprobs, logprobs.detach(), None, torch.zeros_like(base), base, False, sequences)


def twin(logprobs: np.ndarray, base: np.ndarray, beta: float, smoothing: float) -> tuple[float, dict[str, float]]:
    """Return the mean loss and the metrics, pair by pair."""
    rewards = [beta * float(part.sum()) for part in np.split(logprobs - base, np.cumsum(LENGTHS)[:-1])]
    pairs = list(zip(rewards[::2], rewards[1::2], strict=True))
    losses = [
        (1 - smoothing) * math.log1p(math.exp(-(chosen - rejected)))
        + smoothing * math.log1p(math.exp(chosen - rejected))
        for chosen, rejected in pairs
    ]
    return float(np.mean(losses)), {
        "preference/accuracy": float(np.mean([chosen > rejected for chosen, rejected in pairs])),
        "preference/margin": float(np.mean([chosen - rejected for chosen, rejected in pairs])),
        "preference/chosen": float(np.mean([chosen for chosen, _ in pairs])),
        "preference/rejected": float(np.mean([rejected for _, rejected in pairs])),
    }


@pytest.mark.parametrize(("beta", "smoothing"), [(0.1, 0.0), (0.5, 0.2)])
def test_loss_metrics_and_gradient_are_those_of_the_formula(beta: float, smoothing: float) -> None:
    logprobs, base = np.random.default_rng(3).normal(-1, 0.8, (2, sum(LENGTHS)))
    values = torch.tensor(logprobs, requires_grad=True)
    choice = choice_of(beta=beta, labelSmoothing=smoothing)
    losses, columns = compute_loss(inputs_of(values, torch.tensor(base)), choice)
    loss = losses.sum() / choice.normalizer(sum(LENGTHS), len(LENGTHS))
    expected, metrics = twin(logprobs, base, beta, smoothing)
    assert loss.item() == pytest.approx(expected, rel=1e-9)
    counted = choice.counted(sum(LENGTHS), len(LENGTHS))
    assert {name: column.sum().item() / counted for name, column in columns.items()} == pytest.approx(metrics)
    loss.backward()
    assert values.grad is not None
    steps = np.eye(len(logprobs)) * 1e-6
    differences = [
        (twin(logprobs + one, base, beta, smoothing)[0] - twin(logprobs - one, base, beta, smoothing)[0]) / 2e-6
        for one in steps
    ]
    np.testing.assert_allclose(values.grad.numpy(), differences, rtol=1e-4, atol=1e-8)


def test_a_policy_at_its_reference_tells_nothing_apart() -> None:
    values = torch.linspace(-3, -1, sum(LENGTHS))
    losses, columns = compute_loss(inputs_of(values, values.clone()), choice_of())
    torch.testing.assert_close(losses, torch.full((3,), math.log(2)))
    assert columns["preference/accuracy"].tolist() == [0.5, 0.5, 0.5], "equal rewards count half"


def test_dropout_matters_to_the_gradient_alone() -> None:
    base = torch.zeros(sum(LENGTHS))
    inputs = inputs_of(torch.full_like(base, 0.5).requires_grad_(), base)
    dropped = LossInputs(inputs.logprobs, base, None, base, base, False, inputs.sequences)
    losses, columns = compute_loss(dropped, choice_of())
    assert losses.requires_grad and columns["preference/margin"].tolist() == [0.0, 0.0, 0.0]


def test_a_worker_without_pairs_names_the_same_columns() -> None:
    none, some = torch.zeros(0), torch.zeros(sum(LENGTHS))
    losses, columns = compute_loss(inputs_of(none, none, ()), choice_of())
    assert losses.shape == (0,)
    assert columns.keys() == compute_loss(inputs_of(some, some), choice_of())[1].keys()
