"""The arithmetic of a start in a cluster, on objects as a cluster shows them."""

from __future__ import annotations

from typing import Any

import pytest

from side_by_side.start import lines_ended, note, overhead, stages, waited_for

STARTUP = {
    "began": 130.0,
    "first_token_seconds": 50.0,
    "first_update_seconds": 60.0,
    "waited_for": {},
    "parts": [
        {"name": "process", "who": "driver", "begin": 0.0, "seconds": 2.0},
        {"name": "Ray", "who": "driver", "begin": 2.0, "seconds": 1.0},
        {"name": "data", "who": "driver", "begin": 2.0, "seconds": 9.0},
        {"name": "imports", "who": "worker 0", "begin": 4.0, "seconds": 16.0},
        {"name": "engine", "who": "worker 0", "begin": 20.0, "seconds": 28.0},
        {"name": "engine/graphs", "who": "worker 0", "begin": 40.0, "seconds": 3.0},
        {"name": "first generation", "who": "worker 0", "begin": 48.5, "seconds": 6.0},
        {"name": "first generation/first token", "who": "worker 0", "begin": 48.5, "seconds": 1.5},
        {"name": "first update", "who": "worker 0", "begin": 54.5, "seconds": 5.5},
    ],
}


def pod(role: str, node: str = "", running: bool = False) -> dict[str, Any]:
    state = {"running": {}} if running else {"waiting": {"reason": "ContainerCreating"}}
    statuses = [{"name": f"ray-{role}", "state": state}, {"name": "ray-job-submitter", "state": {"running": {}}}]
    return {
        "metadata": {"labels": {"lorarl.io/role": role}},
        "spec": {"nodeName": node} if node else {},
        "status": {"containerStatuses": statuses},
    }


def test_every_moment_is_noted_when_it_is_seen_first_on_head_and_worker() -> None:
    seen: dict[str, float] = {}
    note(seen, 100.0, [], [])
    note(seen, 101.0, [{}], [])
    note(seen, 102.0, [{}], [pod("head", "n", running=True)])
    note(seen, 103.0, [{}], [pod("head", "n", running=True), pod("worker")])
    note(seen, 104.0, [{}], [pod("head", "n", running=True), pod("worker", "n")])
    for now in (105.0, 106.0):
        note(seen, now, [{}], [pod("head", "n", running=True), pod("worker", "n", running=True)])
    assert seen == {"RayJob": 101.0, "pods": 103.0, "scheduled": 104.0, "containers": 105.0}


def test_the_stages_add_up_from_apply_to_the_first_token() -> None:
    seen = {"RayJob": 100.5, "pods": 103.0, "scheduled": 103.0, "containers": 108.0}
    found = stages(100.0, seen, STARTUP)
    assert found == {
        "operator": 0.5,
        "KubeRay": 2.5,
        "scheduling": 0.0,
        "containers": 5.0,
        "Ray up, job submitted": 22.0,
        "process": 2.0,
        "Ray": 1.0,
        "imports": 16.0,
        "engine": 28.0,
        "first token": 1.5,
        "other": 1.5,
    }
    assert sum(found.values()) == pytest.approx(130.0 - 100.0 + STARTUP["first_token_seconds"])


def test_without_a_cluster_there_is_the_command_alone() -> None:
    found = stages(129.8, {}, STARTUP)
    assert found["command"] == pytest.approx(0.2)
    assert sum(found.values()) == pytest.approx(50.2)


def test_what_ends_after_the_first_token_does_not_count() -> None:
    assert "first update" not in waited_for(STARTUP)
    assert "first generation" not in waited_for(STARTUP)


def test_the_overhead_is_of_mean_seconds() -> None:
    assert overhead([{"seconds": 2.0}, {"seconds": 4.0}], [{"seconds": 3.3}]) == pytest.approx(1.1)


def test_the_end_of_a_command_is_told_by_its_lines() -> None:
    lines = [
        (0.5, "step 1/2  reward 0.1"),
        (1.0, "checkpoint of step 1: file:///x"),
        (1.5, "step 2/2  reward 0.2"),
        (2.0, "checkpoint of step 2: file:///y"),
        (7.5, "succeeded after step 2, 0:30 in total"),
        (8.0, "Adapter   file:///y"),
    ]
    assert lines_ended(lines, 9.0) == {"last checkpoint": 0.5, "workers and Ray": 5.5, "report and exit": 1.5}
