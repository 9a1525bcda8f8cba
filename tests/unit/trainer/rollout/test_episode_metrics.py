"""A step's episodes in numbers: turns, seconds, and what ended them."""

from __future__ import annotations

from lorarl_trainer.rollout.collect import Course, ToolUse
from lorarl_trainer.rollout.episodes import episode_metrics


def test_each_end_and_each_cause_has_its_share() -> None:
    courses = [
        Course(3, 0.5, "done"),
        Course(1, 0.1, "tokens"),
        Course(0, 0.2, "timeout"),
        Course(4, 0.0, "done", sequences=2),
    ]
    assert episode_metrics(courses) == {
        "episode/turns": 2.0,
        "episode/sequences": 1.25,
        "episode/environment_seconds": 0.2,
        "episode/ended_done": 0.5,
        "episode/ended_turns": 0.0,
        "episode/ended_tokens": 0.25,
        "episode/ended_timeout": 0.25,
    }


def test_a_job_without_an_environment_has_no_such_metrics() -> None:
    assert episode_metrics([]) == {}


def test_tool_calls_are_counted_by_how_they_went() -> None:
    courses = [Course(3, 0.5, "done", ToolUse(2, 1, 0)), Course(1, 0.1, "done", ToolUse())]
    found = {name: value for name, value in episode_metrics(courses).items() if name.startswith("tools/")}
    assert found == {"tools/calls": 1.0, "tools/malformed": 0.5, "tools/failed": 0.0}
