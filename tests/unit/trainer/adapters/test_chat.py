"""Two answers on a screen: in columns where it is wide enough."""

from __future__ import annotations

from lorarl_trainer.adapters.chat import side_by_side


def test_a_wide_terminal_shows_two_columns() -> None:
    lines = list(side_by_side("one two three four five six seven eight", "short\nand more", 63))
    assert lines == [
        "base                             adapter",
        "-" * 30 + "   " + "-" * 30,
        "one two three four five six      short",
        "seven eight                      and more",
    ]


def test_a_pipe_gets_the_answers_in_turn() -> None:
    assert list(side_by_side("one\ntwo", "", 0)) == ["base:    one", "         two", "adapter: "]
