"""The weight of a KL penalty that keeps a divergence."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_trainer.algorithms.adaptive_kl import adapted
from lorarl_trainer.algorithms.policy_gradient import PolicyGradient
from lorarl_trainer.algorithms.registry import get_algorithm


@pytest.mark.parametrize(
    ("kl", "factor"),
    [(0.1, 1.0), (0.11, 1.01), (0.09, 0.99), (0.5, 1.02), (0.0, 0.98), (-0.3, 0.98), (math.nan, 1.0), (math.inf, 1.0)],
)
def test_the_weight_follows_the_divergence_by_two_percent_at_most(kl: float, factor: float) -> None:
    assert adapted(0.5, kl, target=0.1) == pytest.approx(0.5 * factor)


@given(some.floats(1e-6, 10), some.lists(some.floats(-1, 100), max_size=50), some.floats(1e-3, 10))
def test_the_weight_stays_above_zero(start: float, divergences: list[float], target: float) -> None:
    weight = start
    for kl in divergences:
        weight = adapted(weight, kl, target)
    assert weight > 0


@pytest.mark.parametrize("placement", ["loss", "reward"])
def test_the_weight_is_changed_where_the_penalty_is(placement: str) -> None:
    fields = {"klCoefficient": 0.1, "kl": {"placement": placement, "target": 0.05}}
    algorithm = get_algorithm(AlgorithmSpec.model_validate(fields), 8)
    assert isinstance(algorithm, PolicyGradient)
    changed = algorithm.with_kl_coefficient(0.3)
    in_reward = placement == "reward"
    assert (changed.loss.kl_coefficient, changed.reward_kl and changed.reward_kl.coefficient) == (
        (0.0, 0.3) if in_reward else (0.3, None)
    )
    assert (algorithm.loss.kl_coefficient, algorithm.reward_kl and algorithm.reward_kl.coefficient) == (
        (0.0, 0.1) if in_reward else (0.1, None)
    )
