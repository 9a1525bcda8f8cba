"""The kernel counts the processes that it killed for lack of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from lorarl_trainer.pods.memory import kills_for_memory


@pytest.mark.parametrize(
    ("name", "text", "kills"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 12\noom 2\noom_kill 2\noom_group_kill 0\n", 2),
        ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", 1),
        ("memory.events", "low 0\noom_kill 0\n", 0),
        ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", 0),
    ],
)
def test_both_versions_of_cgroups_report_kills(tmp_path: Path, name: str, text: str, kills: int) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    assert kills_for_memory(tmp_path) == kills


def test_without_cgroups_the_count_is_zero(tmp_path: Path) -> None:
    assert kills_for_memory(tmp_path) == 0
