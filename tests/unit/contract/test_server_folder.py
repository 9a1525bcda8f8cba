"""In a cluster, servers see the adapters only on a volume that the workers mount, and only engines have own pods."""

from __future__ import annotations

from typing import Any

import pytest

from lorarl_api.v1alpha1.server_rules import SERVER_CLUSTER_RULES

MOUNTED = {"worker": {"spec": {}}}
SERVERS = {"servers": ["http://vllm:8000"]}
FOLDER = {"serverFolder": "/mnt/adapters"}


@pytest.mark.parametrize(
    ("rollout", "overrides", "allowed"),
    [
        ({}, {}, True),
        (SERVERS | FOLDER, MOUNTED, True),
        (SERVERS, MOUNTED, False),
        (SERVERS | FOLDER, {}, False),
        (SERVERS | FOLDER, {"head": {"spec": {}}}, False),
        ({"separateEngines": {"count": 1}}, {"engine": {"spec": {}}}, True),
        ({}, {"engine": {"spec": {}}}, False),
    ],
)
def test_a_cluster_takes_servers_with_a_mounted_folder(
    rollout: dict[str, Any], overrides: dict[str, Any], *, allowed: bool
) -> None:
    document = {"rollout": rollout, "cluster": {"podTemplateOverrides": overrides}}
    assert all(rule.holds(document) for rule in SERVER_CLUSTER_RULES) is allowed
