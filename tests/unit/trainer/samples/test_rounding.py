"""What is one number but for rounding."""

from __future__ import annotations

from functools import reduce
from itertools import permutations
from operator import add

import numpy as np
import pytest

from lorarl_trainer.samples.rounding import differ, reached

NAN = np.nan


@pytest.mark.parametrize("size", [2.0**-20, 1.0, 2.0**20])
def test_sums_of_the_same_terms_are_one_number_in_any_order(size: float) -> None:
    sums = np.array([reduce(add, terms) for terms in permutations(3 * size * np.array([0.7, 0.2, 0.1, -0.4]))])
    assert len(set(sums.tolist())) > 1, "the scenario needs sums that are rounded"
    assert not differ(sums.max(), sums.min())
    assert all(reached(sums, least).all() for least in sums)


def test_terms_that_cancel_are_zero() -> None:
    assert not differ(0.1 + 0.2 - 0.3, 0.0) and reached(np.array([0.3 - 0.2 - 0.1]), 0.0).all()


@pytest.mark.parametrize(("least", "below"), [(1.0, 1 - 1e-8), (100.0, 99.99999), (-1.0, -1.0001), (0.0, -1e-12)])
def test_what_is_less_is_less(least: float, below: float) -> None:
    assert reached(np.array([below, least, least + 1]), least).tolist() == [False, True, True]
    assert differ(below, least)


def test_nothing_is_known_of_what_is_not_scored() -> None:
    assert not reached(np.array([NAN]), -1e9).any() and not differ(NAN, 1.0) and not differ(NAN, NAN)
