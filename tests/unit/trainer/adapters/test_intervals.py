"""Means and intervals, compared with SciPy-free arithmetic on numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest

from lorarl_trainer.adapters.intervals import mean_interval, pass_at


def test_an_interval_is_the_mean_and_1_96_standard_errors() -> None:
    found = mean_interval([1.0, 0.0, 1.0, 0.0])
    margin = 1.96 * math.sqrt((4 * 0.25 / 3) / 4)
    assert found.mean == 0.5
    assert (found.low, found.high) == (pytest.approx(0.5 - margin, abs=1e-4), pytest.approx(0.5 + margin, abs=1e-4))


def test_paired_differences_have_the_smaller_interval() -> None:
    before, after = [0.1, 0.5, 0.9, 0.3], [0.2, 0.6, 1.0, 0.4]
    gain = mean_interval([b - a for a, b in zip(before, after, strict=True)])
    assert gain.mean == pytest.approx(0.1)
    assert gain.low == pytest.approx(0.1) == gain.high, "every row gained the same"


def test_one_row_says_nothing_of_its_spread() -> None:
    assert mean_interval([0.7]) == mean_interval([0.7]).__class__(0.7, None, None)


def test_no_rows_have_no_mean() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        mean_interval([])


def test_a_row_passes_with_its_best_sample() -> None:
    assert pass_at([[0.0, 1.0], [0.5, 0.9], [1.0, 1.0]], passing=1.0) == [1.0, 0.0, 1.0]
    assert pass_at([[0.5, 0.9]], passing=0.9) == [1.0]
