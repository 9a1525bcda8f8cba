"""Advantages of every algorithm, against the formulas of their papers, computed completion by completion."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_api.v1alpha1.algorithm_types import WITHOUT_REWARD
from lorarl_trainer.algorithms.dapo import overlong_share
from lorarl_trainer.algorithms.groups import unused_signal, with_signal
from lorarl_trainer.algorithms.registry import ALGORITHMS, get_algorithm

NAN = math.nan
LIMIT = 100

type Twin = Callable[[list[float], list[list[float]]], Callable[[float], float]]
"""Takes a group's scored rewards and all groups'; returns the advantage of a reward."""


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def std(values: list[float]) -> float:
    center = mean(values)
    return math.sqrt(math.fsum((value - center) ** 2 for value in values) / (len(values) - 1))


def scaled(group: list[float]) -> Callable[[float], float]:
    return lambda r: (r - mean(group)) / (std(group) + 1e-6)


def joined(groups: list[list[float]]) -> list[float]:
    return [reward for group in groups for reward in group]


def leave_one_out(group: list[float]) -> Callable[[float], float]:
    return lambda r: r - (math.fsum(group) - r) / (len(group) - 1)


def with_baseline(group: list[float], groups: list[list[float]]) -> Callable[[float], float]:
    centered = [reward - mean(one) for one in groups for reward in one]
    return lambda r: scaled(centered)(r - mean(group))


TWINS: dict[str, Twin] = {
    "grpo": lambda group, groups: scaled(group),
    "dr_grpo": lambda group, groups: lambda r: r - mean(group),
    "rloo": lambda group, groups: leave_one_out(group),
    "reinforce": lambda group, groups: lambda r: r - mean(joined(groups)),
    "reinforce_plus_plus": lambda group, groups: scaled(joined(groups)),
    "reinforce_plus_plus_baseline": with_baseline,
    "maxrl": lambda group, groups: lambda r: (r - mean(group)) / mean(group) if mean(group) > 0 else 0.0,
    "dapo": lambda group, groups: scaled(group),
    "gspo": lambda group, groups: scaled(group),
    "cispo": lambda group, groups: scaled(group),
    "sapo": lambda group, groups: scaled(group),
    "ppo": lambda group, groups: lambda r: r,
}


def advantages(kind: str, rewards: list[list[float]], lengths: object = 1, **options: object) -> np.ndarray:
    spec = AlgorithmSpec.model_validate({"type": kind, "groupSize": len(rewards[0]), **options})
    rewards_P_G = np.array(rewards, dtype=np.float64)
    return get_algorithm(spec, LIMIT).advantages(rewards_P_G, np.broadcast_to(lengths, rewards_P_G.shape))


REWARDS = [[0.0, 1.0, 1.0, 0.25], [1.0, 2.0, NAN, 4.0], [0.0, 0.0, 1.0, 0.0]]


def test_every_policy_gradient_algorithm_has_a_twin() -> None:
    assert TWINS.keys() == ALGORITHMS.keys() - set(WITHOUT_REWARD)


@pytest.mark.parametrize("kind", TWINS)
def test_advantages_are_those_of_the_paper(kind: str) -> None:
    groups = [[reward for reward in group if not math.isnan(reward)] for group in REWARDS]
    expected = [
        [0.0 if math.isnan(reward) else TWINS[kind](scored, groups)(reward) for reward in group]
        for group, scored in zip(REWARDS, groups, strict=True)
    ]
    result = advantages(kind, REWARDS)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", TWINS)
@given(
    rewards=arrays(np.float64, some.tuples(some.integers(1, 4), some.integers(2, 5)), elements=some.floats(-10, 10)),
    data=some.data(),
)
@settings(max_examples=25, deadline=None)
def test_advantages_are_finite_and_leave_out_what_was_not_scored(
    kind: str, rewards: np.ndarray, data: some.DataObject
) -> None:
    unscored = data.draw(arrays(bool, rewards.shape))
    result = advantages(kind, np.where(unscored, NAN, rewards).tolist())
    assert np.isfinite(result).all()
    assert not result[unscored].any()


@pytest.mark.parametrize("kind", sorted(TWINS.keys() - {"reinforce", "reinforce_plus_plus", "ppo"}))
def test_groups_of_equals_teach_nothing(kind: str) -> None:
    assert not advantages(kind, [[0.7] * 7, [NAN, 0.1, *[NAN] * 5], [0.0] * 7]).any()


@pytest.mark.parametrize("kind", ["reinforce", "reinforce_plus_plus"])
def test_prompts_compete_where_groups_do_not_count(kind: str) -> None:
    """A group of one completion is enough, if there are other prompts."""
    best, *others = advantages(kind, [[1.0], [0.0], [0.0]])[:, 0]
    assert best > 0 > max(others)
    assert not advantages(kind, [[0.1]] * 7).any(), "a rounded mean is no signal"


@pytest.mark.parametrize("kind", sorted(TWINS))
def test_only_types_that_compare_groups_replace_them(kind: str) -> None:
    """Of those, dapo does so without being asked."""
    usual = get_algorithm(AlgorithmSpec.model_validate({"type": kind}), LIMIT).max_refills
    assert usual == (3 if kind == "dapo" else 0)
    assert get_algorithm(AlgorithmSpec.model_validate({"type": kind, "maxRefills": 2}), LIMIT).max_refills in (2, 3)


def test_grpo_may_do_without_the_standard_deviation() -> None:
    without = advantages("grpo", REWARDS, grpo={"scaleByStd": False})
    np.testing.assert_array_equal(without, advantages("dr_grpo", REWARDS))


@pytest.mark.parametrize(("length", "share"), [(1, 0.0), (80, 0.0), (81, 0.05), (90, 0.5), (100, 1.0)])
def test_the_overlong_share_grows_over_the_last_tokens(length: int, share: float) -> None:
    assert overlong_share(np.array(length), LIMIT, 20) == pytest.approx(share)


def test_a_right_answer_that_is_too_long_is_worth_less() -> None:
    options = {"overlongBufferTokens": 20, "overlongPenalty": 0.5}
    result = advantages("dapo", [[1.0, 1.0, 0.0]], [[10, 90, 10]], dapo=options)
    np.testing.assert_allclose(result, advantages("dapo", [[1.0, 0.75, 0.0]]), rtol=1e-6)
    assert not advantages("dapo", [[1.0, 1.0, 1.0]], [[10, 90, 10]]).any(), "without the option lengths do not count"


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_a_group_of_equal_rewards_learns_nothing_from_its_lengths(reward: float) -> None:
    """It has no signal: dynamic sampling replaces it, and the run would say that it trains nothing."""
    result = advantages("dapo", [[reward] * 4], [[10, 90, 100, 20]], dapo={"overlongBufferTokens": 20})
    assert not result.any()


def test_groups_that_differ_and_train_nothing_are_a_warning() -> None:
    """maxrl divides by a group's mean reward. With rewards of -1 and 1, rare successes would count for nothing."""
    rewards_P_G = np.array([[-1, -1, -1, 1], [1, 1, 1, -1], [1, 1, 1, 1], [-1, -1, NAN, 0]])
    for kind, warned in (("maxrl", True), ("grpo", False)):
        algorithm = get_algorithm(AlgorithmSpec(type=kind, group_size=4), 8)
        advantages_P_G = algorithm.advantages(rewards_P_G, np.ones((4, 4), dtype=np.int64))
        found = unused_signal(rewards_P_G, advantages_P_G.reshape(-1).tolist(), algorithm.no_advantages)
        assert (found is not None) == warned
        assert not found or found.startswith("2 of 3 groups with different rewards train nothing, because the mean")


def test_a_penalty_that_makes_rewards_equal_is_named() -> None:
    spec = AlgorithmSpec.model_validate({"type": "dapo", "groupSize": 4, "dapo": {"overlongBufferTokens": 20}})
    algorithm, rewards_P_G = get_algorithm(spec, LIMIT), np.array([[1.0, 0, 0, 0]])
    advantages_P_G = algorithm.advantages(rewards_P_G, np.array([[LIMIT, 10, 10, 10]]))
    found = unused_signal(rewards_P_G, advantages_P_G.reshape(-1).tolist(), algorithm.no_advantages)
    assert found is not None and "equal once the penalty for length is subtracted. Lower spec.algorithm.dapo" in found


def test_rounding_is_no_signal() -> None:
    assert not with_signal(np.array([[0.3, 0.1 + 0.2], [-0.3, -0.1 - 0.2], [0, 0.1 + 0.2 - 0.3]])).any()
    assert with_signal(np.array([[0, 1e-12], [1e6, 1e6 + 1], [-1, 1]])).all()


def test_a_mean_next_to_zero_bounds_maxrls_advantages() -> None:
    """With rewards from 0 on, no advantage is above G - 1. Others must not be worth more by an order of magnitude."""
    assert np.abs(advantages("maxrl", [[1, -1, 1, -1, 1, -1, 1, -0.9]])).max() < 2 * 8
    np.testing.assert_allclose(advantages("maxrl", [[1, 0, 0, NAN]]), [[2, -1, -1, 0]])
