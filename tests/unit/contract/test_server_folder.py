"""In a cluster, servers see the adapters only on a volume that the workers mount."""

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
    ],
)
def test_a_job_with_servers_names_a_mounted_folder(
    rollout: dict[str, Any], overrides: dict[str, Any], *, allowed: bool
) -> None:
    [rule] = SERVER_CLUSTER_RULES
    assert rule.holds({"rollout": rollout, "cluster": {"podTemplateOverrides": overrides}}) is allowed
