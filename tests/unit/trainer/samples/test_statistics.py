"""Means, pass@k and intervals of evaluations, against what is known of them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from lorarl_trainer.samples.statistics import (
    Estimate,
    estimate,
    estimate_gain,
    eval_metrics,
    interval,
    pass_at_k,
    ratio_interval,
    row_means,
    row_passes,
)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 3), (6, 1, 6), (4, 0, 2), (4, 4, 2), (10, 3, 4)])
def test_pass_at_k_is_the_share_of_draws_with_a_success(n: int, c: int, k: int) -> None:
    draws = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(np.mean([any(draw) for draw in draws]))


def test_the_interval_of_zeros_and_ones_is_wilsons() -> None:
    """The numbers are those of statsmodels' proportion_confint(8, 10, method="wilson")."""
    assert interval([1.0] * 8 + [0.0] * 2) == pytest.approx((0.490162, 0.943318), abs=1e-5)
    low, high = interval([1.0] * 16) or (0.0, 0.0)
    assert 0.8 < low < 0.81 and high == pytest.approx(1.0), "16 of 16 is not certain"


def test_the_interval_of_other_values_holds_the_mean_in_19_of_20_cases() -> None:
    stream = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        low, high = interval(stream.gamma(2.0, size=60)) or (0.0, 0.0)
        held += low <= 2.0 <= high
    assert 0.92 < held / 1000 < 0.97


def test_the_interval_of_a_loss_per_token_holds_it_in_19_of_20_cases() -> None:
    stream = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        lengths = stream.integers(1, 20, size=80)
        low, high = ratio_interval(lengths * stream.normal(1.5, 0.4, size=80), lengths) or (0.0, 0.0)
        held += low <= 1.5 <= high
    assert 0.92 < held / 1000 < 0.97


def test_the_interval_of_a_score_that_ends_at_1_ends_there() -> None:
    low, high = interval([1.0] * 95 + [0.3]) or (0.0, 0.0)
    assert 0.97 < low < high == 1.0


def test_one_row_has_no_interval() -> None:
    assert interval([1.0]) is None and ratio_interval([1.0], [3]) is None
    assert eval_metrics(np.array([[0.5, 1.0]]), [2], 1.0) == (0.75, {"pass_at_2": 1.0})


def test_completions_without_a_reward_are_left_out_row_by_row() -> None:
    nan = float("nan")
    mean, metrics = eval_metrics(np.array([[1.0, nan], [0.0, 0.5], [nan, nan]]), [1, 2], 1.0)
    assert mean == pytest.approx((1.0 + 0.25) / 2)
    assert metrics["pass_at_1"] == pytest.approx(0.5)
    assert metrics["pass_at_2"] == 0.0, "only the second row has two"


def test_an_estimate_has_the_interval_of_its_kind() -> None:
    passed = np.array([1.0] * 8 + [0.0] * 2)
    assert estimate(passed) == Estimate(0.8, *(interval(passed) or (None, None)))
    assert estimate(np.array([0.7])) == Estimate(0.7, None, None), "one row says nothing of its spread"
    with pytest.raises(ValueError, match="at least one value"):
        estimate(np.array([np.nan]))


def test_a_gain_has_the_smaller_interval_of_paired_differences() -> None:
    before, after = np.array([0.1, 0.5, 0.9, 0.3]), np.array([0.2, 0.6, 1.0, 0.4])
    gain = estimate_gain(before, after)
    assert gain.mean == pytest.approx(0.1)
    assert gain.low == pytest.approx(0.1) == gain.high, "every row gained the same"
    assert estimate_gain(np.append(before, np.nan), np.append(after, 1.0)) == gain, "a row needs both"


SUMMED = 0.7 * 1 + 0.2 * 1 + 0.1 * 1
"""Of a reward of one's own, whose parts are all full: 0.9999999999999999."""


def test_a_reward_passes_that_is_the_least_one_but_for_rounding() -> None:
    assert SUMMED < 1.0
    rewards = np.array([[SUMMED, SUMMED], [SUMMED, 0.999], [1.0, np.nan]])
    _, metrics = eval_metrics(rewards, (1, 2), 1.0)
    assert metrics["pass_at_1"] == pytest.approx(5 / 6) and metrics["pass_at_2"] == 1.0


def test_rows_without_enough_scores_are_marked() -> None:
    nan = float("nan")
    rewards = np.array([[1.0, nan], [0.0, 0.5], [nan, nan]])
    assert row_means(rewards)[:2].tolist() == [1.0, 0.25] and np.isnan(row_means(rewards)[2])
    assert row_passes(rewards, 1, 0.5)[:2].tolist() == [1.0, 0.5]
    assert np.isnan(row_passes(rewards, 2, 0.5)).tolist() == [True, False, True]
