"""Dynamic sampling: how many prompts are added, and which groups a step trains."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from lorarl_trainer.algorithms.groups import with_signal
from lorarl_trainer.rollout.refill import groups_to_train, indices_of, prompts_to_add

SIGNAL, NONE, UNSCORED = [0.0, 1.0], [1.0, 1.0], [math.nan, 1.0]


@pytest.mark.parametrize(
    ("groups", "wanted", "count"),
    [
        ([SIGNAL, SIGNAL], 2, 0),
        ([SIGNAL, SIGNAL, NONE], 2, 0),
        ([NONE, UNSCORED], 2, 2),
        ([SIGNAL, NONE], 2, 2),
        ([SIGNAL, SIGNAL, SIGNAL, NONE], 4, 2),
        ([SIGNAL] * 7 + [NONE], 8, 2),
        ([SIGNAL] + [NONE] * 7, 8, 8),
    ],
)
def test_as_many_prompts_are_added_as_should_be_enough(groups: list[list[float]], wanted: int, count: int) -> None:
    assert prompts_to_add(np.array(groups), wanted) == count


def test_groups_without_signal_only_fill_up() -> None:
    rewards_P_G = np.array([NONE, SIGNAL, UNSCORED, SIGNAL, SIGNAL])
    assert groups_to_train(rewards_P_G, 2).tolist() == [1, 3]
    assert groups_to_train(rewards_P_G, 4).tolist() == [0, 1, 3, 4]
    assert indices_of([1, 3], 2) == [2, 3, 6, 7]


@given(some.lists(some.booleans(), min_size=1, max_size=40), some.integers(1, 20))
def test_a_step_trains_as_many_groups_as_wanted_and_no_group_twice(signal: list[bool], wanted: int) -> None:
    rewards_P_G = np.array([SIGNAL if one else NONE for one in signal])
    chosen = groups_to_train(rewards_P_G, wanted)
    assert len(chosen) == min(wanted, len(signal)) and (np.diff(chosen) > 0).all()
    assert with_signal(rewards_P_G)[chosen].sum() == min(wanted, sum(signal))
    count = prompts_to_add(rewards_P_G, wanted)
    assert (count == 0) == (sum(signal) >= wanted) and count <= wanted
