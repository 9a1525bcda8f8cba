"""The operator's log says once which KubeRay runs the pods."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from lorarl_operator.control.kuberay_version import TESTED, VersionLog, kuberay_version

OPERATOR_PAGE = Path(__file__).parents[3] / "docs" / "operator.md"


def head(tags: str | None) -> dict:
    env = [{"name": "RAY_USAGE_STATS_EXTRA_TAGS", "value": tags}] if tags is not None else []
    return {"spec": {"containers": [{"name": "ray-head", "env": [{"name": "A", "valueFrom": {}}, *env]}]}}


@pytest.mark.parametrize(
    ("pod", "version"),
    [
        (head("kuberay_version=v1.6.2;kuberay_crd=RayJob"), "1.6.2"),
        (head("team=a;kuberay_version=1.7.0-rc.1"), "1.7.0-rc.1"),
        (head("team=a"), ""),
        (head(None), ""),
        ({"spec": None}, ""),
        ({}, ""),
    ],
)
def test_the_version_is_in_the_heads_environment(pod: dict, version: str) -> None:
    assert kuberay_version(pod) == version


def test_each_version_is_logged_once_and_an_untested_one_warns(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = VersionLog()
    for version in ("v1.6.2", "v1.6.2", "v1.70.0", "v1.6.2"):
        log.note(head(f"kuberay_version={version}"))
        log.note(head(None))
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("INFO", "KubeRay 1.6.2 runs the pods"),
        ("WARNING", "KubeRay 1.70.0 runs the pods, and this version of lorarl is tested with 1.6 and 1.7"),
    ]


def test_the_versions_that_the_tests_run_are_those_without_a_warning() -> None:
    rows = re.findall(
        r"^\| (?:usual|oldest|newest) \|[^|]+\| (\d+\.\d+)\.\d+ \|", OPERATOR_PAGE.read_text(), re.MULTILINE
    )
    assert sorted(set(rows)) == sorted(TESTED)
