"""GRPO's advantages: within the group, and blind to what could not be scored."""

from __future__ import annotations

import numpy as np
import pytest

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_trainer.algorithms.grpo import Grpo
from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.samples.requests import LossChoice

NAN = float("nan")


def advantages(rewards: list[list[float]]) -> np.ndarray:
    rewards_P_G = np.array(rewards, dtype=np.float64)
    algorithm = Grpo(AlgorithmSpec(group_size=len(rewards[0])), 100)
    return algorithm.advantages(rewards_P_G, np.ones(rewards_P_G.shape, np.int64))


def test_advantages_have_mean_0_and_deviation_1_in_each_group() -> None:
    result = advantages([[0, 1, 1, 0], [1, 2, 3, 4]])
    np.testing.assert_allclose(result.mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(result.std(axis=1, ddof=1), 1, atol=1e-5)


def test_a_group_of_equals_teaches_nothing() -> None:
    np.testing.assert_array_equal(advantages([[1, 1, 1], [0, 0, 0]]), 0)


@pytest.mark.parametrize(("reward", "group"), [(0.7, 7), (1.1, 12), (-3.3, 7), (100.1, 7), (1000.1, 12)])
def test_nor_does_one_whose_mean_is_rounded(reward: float, group: int) -> None:
    np.testing.assert_array_equal(advantages([[reward] * group]), 0)


def test_large_rewards_are_compared_as_small_ones() -> None:
    np.testing.assert_allclose(advantages([[1e25, 2e25, 3e25]]), advantages([[1, 2, 3]]), rtol=1e-5)


def test_a_completion_without_a_score_changes_nothing_for_the_others() -> None:
    with_gap, without = advantages([[0, NAN, 1, 1]]), advantages([[0, 1, 1]])
    np.testing.assert_allclose(with_gap[0, [0, 2, 3]], without[0], rtol=1e-6)
    assert with_gap[0, 1] == 0


@pytest.mark.parametrize("rewards", [[NAN, NAN, NAN], [1.0, NAN, NAN]])
def test_a_group_with_fewer_than_two_scores_teaches_nothing(rewards: list[float]) -> None:
    np.testing.assert_array_equal(advantages([rewards]), 0)


def test_sft_compares_no_answers() -> None:
    sft = get_algorithm(AlgorithmSpec(type="sft"), 100)
    assert (sft.group_size, sft.updates_per_step, sft.loss) == (1, 1, LossChoice("cross_entropy"))
    assert sft.advantages(np.ones((3, 1)), np.ones((3, 1), np.int64)).tolist() == [[0.0], [0.0], [0.0]]
