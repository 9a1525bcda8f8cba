"""Curriculum by pass rate: which rows take their turn, and the same ones in a run that resumes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorarl_api.v1alpha1 import CurriculumSpec
from lorarl_trainer.data.curriculum import Curriculum, pass_rate_after, row_key, share_of_turns, takes_turn
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.order import Part
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.stream import RowStream

NAN = float("nan")
ROWS = [EncodedRow(Row(str(number), "", {}, number + 1), [number], []) for number in range(40)]
SPEC = CurriculumSpec(least_share=0.1)
KEYS = [row_key(row.prompt_ids, row.row.answer) for row in ROWS]


@pytest.mark.parametrize(
    ("rate", "share"), [(None, 1.0), (0.0, 0.1), (1.0, 0.1), (0.5, 1.0), (0.25, 0.75), (0.75, 0.75), (0.01, 0.1)]
)
def test_rows_that_teach_most_take_most_turns(rate: float | None, share: float) -> None:
    assert share_of_turns(rate, 0.1) == pytest.approx(share)


@pytest.mark.parametrize(
    ("before", "rewards", "after"),
    [
        (None, [1, 0, 0, 1], 0.5),
        (0.5, [1, 1, 1, 1], 0.75),
        (None, [1, NAN, NAN, 0], 0.5),
        (None, [NAN, NAN], None),
        (0.25, [NAN, NAN], 0.25),
        (None, [0.8, 0.79, 0.9, 0.1], 0.5),
        (None, [0.5 + 0.1 + 0.1 + 0.1, 0.1], 0.5),
    ],
)
def test_a_group_moves_the_rate_halfway(before: float | None, rewards: list[float], after: float | None) -> None:
    assert pass_rate_after(before, np.array(rewards), 0.8) == after


@given(st.floats(0, 1), st.floats(0.01, 1), st.integers(0, 2**31))
def test_the_share_is_that_of_the_turns(rate: float, least: float, seed: int) -> None:
    taken = np.mean([takes_turn(rate, least, seed, position) for position in range(2000)])
    assert taken == pytest.approx(share_of_turns(rate, least), abs=0.06)


def taught(stream: RowStream, steps: int) -> list[int]:
    """Take rows for some steps. Rows below 10 always pass, those above 29 never do, others half the time."""
    drawn = []
    for _ in range(steps):
        numbers = [row.prompt_ids[0] for row in stream.next(8)]
        rewards = [[1, 1] if number < 10 else [0, 0] if number > 29 else [1, 0] for number in numbers]
        stream.record(np.array(rewards, float))
        drawn += numbers
    return drawn


def test_what_is_learned_or_too_hard_comes_less_often() -> None:
    drawn = taught(RowStream(ROWS, 3, 0, None, Curriculum(SPEC, 3, KEYS)), 100)
    counts = np.bincount(drawn[80:], minlength=40)
    assert counts[10:30].mean() > 6 * np.concatenate([counts[:10], counts[30:]]).mean()
    assert counts[:10].sum() > 0 and counts[30:].sum() > 0, "they are tried again"
    assert counts[10:30].max() - counts[10:30].min() <= 2, "all of them in each epoch"


@pytest.mark.parametrize("parts", [None, [Part(10, 1.0), Part(30, 2.0)]])
def test_a_resumed_run_draws_the_same_rows(parts: list[Part] | None) -> None:
    whole = Curriculum(SPEC, 1, KEYS)
    stream = RowStream(ROWS, 1, 0, parts, whole)
    taught(stream, 30)
    kept, position = json.dumps(whole.state), stream.position
    resumed = Curriculum(SPEC, 1, KEYS, json.loads(kept))
    assert taught(RowStream(ROWS, 1, position, parts, resumed), 30) == taught(stream, 30)
    assert resumed.state == whole.state
    assert taught(RowStream(ROWS, 1, position, parts, Curriculum(SPEC, 1, KEYS)), 30) != taught(
        RowStream(ROWS, 1, position, parts, Curriculum(SPEC, 1, KEYS, json.loads(kept))), 30
    )


def test_rates_of_other_rows_are_dropped() -> None:
    curriculum = Curriculum(SPEC, 0, KEYS)
    curriculum.record([3, 5], np.array([[1, 0], [1, 1]], float))
    kept = json.loads(json.dumps(curriculum.state))
    assert Curriculum(SPEC, 0, KEYS, kept).state == kept
    replaced = [*KEYS[:3], "another", *KEYS[4:]]
    assert Curriculum(SPEC, 0, replaced, kept).state["rates"] == {"5": 1.0}
    assert Curriculum(SPEC, 0, KEYS[:5], kept).state["rates"] == {"3": 0.5}
    assert len({row_key([1, 2], "a"), row_key([1, 2], "b"), row_key([1, 3], "a"), row_key([1, 2], None)}) == 4


def test_the_metrics_say_what_was_passed_over() -> None:
    curriculum = Curriculum(CurriculumSpec(least_share=0.01), 0, KEYS[:4])
    stream = RowStream(ROWS[:4], 0, 0, None, curriculum)
    stream.next(4)
    assert stream.record(np.array([[1, 1], [0, 0], [1, 0], [1, 0]], float)) == {
        "curriculum/skipped_share": 0.0,
        "curriculum/pass_rate": 0.5,
        "curriculum/known_share": 1.0,
    }
    for _ in range(2):
        before = stream.position
        stream.next(20)
        found = stream.record(np.ones((20, 2)))["curriculum/skipped_share"]
        assert found == pytest.approx(1 - 20 / (stream.position - before)) and found > 0.3, "of the turns since then"


def test_without_a_curriculum_nothing_changes() -> None:
    stream = RowStream(ROWS, 5)
    assert stream.next(8) == RowStream(ROWS, 5, 0, None, None).next(8) and stream.position == 8
    assert stream.record(np.ones((8, 2))) == {}
