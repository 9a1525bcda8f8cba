"""The alerts, evaluated by promtool over series like those of the operator: when each fires, and when it does not."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cluster.processes import find
from support.cluster.tools import tools_or_skip
from support.helm import only, rendered

LEADER = 'lorarl_operator_leader{namespace="lorarl-system", service="lorarl-metrics", pod="%s"}'
STEP = 'lorarl_job_step{namespace="team", job_name="a", service="lorarl-metrics", pod="one"}'
ERRORS = (
    'lorarl_operator_errors_total{namespace="lorarl-system", service="lorarl-metrics", pod="one", cause="ApiError"}'
)
WATCHES = 'lorarl_operator_watches{namespace="lorarl-system", service="lorarl-metrics", pod="one"}'
FAILURE = (
    "lorarl_job_failure_timestamp_seconds"
    '{namespace="team", job_name="a", reason="OutOfMemory", service="lorarl-metrics", pod="%s"}'
)
QUEUE = 'lorarl_operator_queue_depth{namespace="lorarl-system", service="lorarl-metrics", pod="one"}'
UNLISTED = 'lorarl_operator_namespaces_unlisted{namespace="lorarl-system", service="lorarl-metrics", pod="one"}'
ONE, TWO = LEADER % "one", LEADER % "two"

# An alert; one sample per minute of each series, in promtool's notation (start+growth x times, _ without a sample); a
# minute; and how many alerts fire then.
CASES: dict[str, tuple[str, dict[str, str], int, int]] = {
    "no replica leads": ("LorarlNoLeader", {ONE: "0x10", TWO: "0x10"}, 5, 1),
    "no replica exists": ("LorarlNoLeader", {}, 5, 1),
    "a change of leader": ("LorarlNoLeader", {ONE: "1x5 0x10", TWO: "0x6 1x10"}, 7, 0),
    "one job always fails": ("LorarlReconcileErrors", {ERRORS: "0+1x60"}, 40, 1),
    "errors in the past": ("LorarlReconcileErrors", {ERRORS: "0+1x10 10x50"}, 40, 0),
    "a watch has stopped": ("LorarlWatchDead", {WATCHES: "8x10 7x20", ONE: "1x30"}, 20, 1),
    "a replica that stands by again": ("LorarlWatchDead", {WATCHES: "8x10 0x20", ONE: "1x10 0x20"}, 20, 0),
    "a namespace is not listed": ("LorarlNamespaceUnlisted", {UNLISTED: "1x10"}, 8, 1),
    "jobs wait for the operator": ("LorarlQueueBacklog", {QUEUE: "80x20"}, 15, 1),
    "a burst of jobs": ("LorarlQueueBacklog", {QUEUE: "80x5 0x20"}, 15, 0),
    "a job failed ten minutes ago": ("LorarlJobFailed", {FAILURE % "one": "600x40"}, 20, 1),
    "two replicas export one job": (
        "LorarlJobFailed",
        {FAILURE % "one": "600x15 _x20", FAILURE % "two": "_x15 600x20"},
        20,
        1,
    ),
    "a job failed an hour ago": ("LorarlJobFailed", {FAILURE % "one": "600x90"}, 70, 0),
    "no step for an hour": ("LorarlJobStuck", {STEP: "0+1x10 10x80"}, 85, 1),
    "never a step": ("LorarlJobStuck", {STEP: "0x80"}, 70, 1),
    "a step now and then": ("LorarlJobStuck", {STEP: "0x40 1x40"}, 75, 0),
    "not yet an hour": ("LorarlJobStuck", {STEP: "0x80"}, 50, 0),
    "resumed after a suspension": ("LorarlJobStuck", {STEP: "0+1x10 10x10 _x40 10x20"}, 75, 0),
    "another leader exports it": (
        "LorarlJobStuck",
        {STEP: "3x40 _x60", STEP.replace("one", "two"): "_x40 3x60"},
        90,
        1,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_alert_fires_only_when_it_should(case: str, tmp_path: Path) -> None:
    alert, series, minute, count = CASES[case]
    rule = only(rendered({"metrics.prometheusRule.enabled": True}), "PrometheusRule")
    assert fired(rule["spec"], alert, series, minute, tmp_path) == count


def fired(spec: dict[str, Any], alert: str, series: dict[str, str], minute: int, folder: Path) -> int:
    """How many alerts of this name fire at this minute."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(spec))
    # The test expects no alert, so promtool's complaint lists those that fire.
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"alertname": alert, "eval_time": f"{minute}m", "exp_alerts": []}],
    }
    (folder / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]})
    )
    with tools_or_skip():
        promtool = find("promtool")
    done = subprocess.run([promtool, "test", "rules", folder / "test.yaml"], capture_output=True, text=True, timeout=60)
    output = done.stdout + done.stderr
    if done.returncode == 0:
        return 0
    assert "exp:[" in output, output
    return output.count("Labels:{alertname=")
