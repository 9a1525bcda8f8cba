"""The least time of a mixture's layers, which its benchmark compares with."""

from __future__ import annotations

import pytest

from bench_experts import SHAPE, TINY, floor


def test_two_ranks_have_half_of_the_products_and_send_rows_four_times() -> None:
    one, two = floor(SHAPE, 1), floor(SHAPE, 2)
    assert one["floor_rows_ms"] == 0
    frozen, adapters = 2 * 3 * 2048 * 768, 3 * 16 * 3 * (2048 + 768)
    products = 4 * 8192 * 8 * 2 * (frozen + adapters)
    assert one["floor_products_ms"] == pytest.approx(1e3 * products / 989e12)
    assert two["floor_products_ms"] == pytest.approx(one["floor_products_ms"] / 2)
    all_rows = 4 * 4 * 4096 * 2048 * 2
    assert 0.99 < two["floor_rows_ms"] / (1e3 * all_rows / 450e9) < 1


def test_fewer_rows_travel_if_a_rank_may_have_none_of_a_tokens_experts() -> None:
    # Four of eight experts over eight ranks: half of the tokens go to each of the seven others.
    expected = 1e3 * 4 * 2 * 64 / 8 * 7 / 2 * 64 * 2 / 450e9
    assert floor(TINY, 8)["floor_rows_ms"] == pytest.approx(expected)
