"""How many tokens of an answer a draft guesses right."""

from __future__ import annotations

import pytest

import bench_drafts


@pytest.mark.parametrize(
    ("source", "ended", "steps"),
    [
        ("own", 0, 7),  # 5 6 7 8 5 6 one by one; then 7 8 are guessed, and 9 is drawn
        ("siblings", 0, 7),  # the sibling is as far, and the same so far
        ("siblings", 1, 6),  # 5, 6; 7 guessed, 8; 5 6 guessed, 7; 8; 9
        ("either", 1, 6),
    ],
)
def test_steps_are_saved_by_what_was_there_before(source: str, ended: int, steps: int) -> None:
    answer, sibling = [5, 6, 7, 8, 5, 6, 7, 8, 9], [5, 6, 7, 8, 5, 6, 7, 1]
    assert bench_drafts.steps([1, 2], answer, [sibling], ended, source, 2) == steps


def test_an_answer_ends_with_its_end_token() -> None:
    assert bench_drafts.until([4, 5, 0, 0], 0) == [4, 5, 0]
    assert bench_drafts.until([4, 5], 0) == [4, 5]


def test_tokens_and_steps_of_all_answers_and_of_the_longest() -> None:
    assert bench_drafts.rates([1], [[2, 3], [4, 5, 6]], "own", 2) == ((5, 5), (3, 3))
