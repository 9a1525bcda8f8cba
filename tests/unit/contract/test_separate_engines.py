"""What a manifest for one machine may ask of engines on other GPUs than the trainer's, and what it may not."""

from __future__ import annotations

from typing import Any

import pytest

from lorarl_api.load import faults
from unit.contract.manifests import manifest

ENGINES = "spec.rollout.separateEngines"
AHEAD = {
    ENGINES: {},
    "spec.rollout.maxStaleness": 1,
    "spec.algorithm": {"type": "grpo", "correction": {"preset": "decoupled_token_is"}},
}


@pytest.mark.parametrize(
    "changes",
    [
        {ENGINES: {}},
        {ENGINES: {"count": 3}, "spec.rollout.serverTimeoutSeconds": 60.0},
        {ENGINES: {"tensorParallelSize": 2, "gpuMemoryFraction": 0.8}, "spec.cluster.gpusPerNode": 3},
        AHEAD,
    ],
)
def test_one_machine_takes_them(changes: dict[str, Any]) -> None:
    assert faults(manifest(changes)) == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"spec.rollout.topP": 0.9}, "spec.rollout.topP"),
        ({"spec.rollout.gpuMemoryFraction": 0.5}, "spec.rollout.gpuMemoryFraction"),
        ({"spec.rollout.adapterSync": "disk"}, "spec.rollout.adapterSync"),
        ({"spec.rollout.serverFolder": "/mnt/adapters"}, "spec.rollout.serverFolder"),
        ({"spec.rollout.credentialsSecret": "key"}, "spec.rollout.credentialsSecret"),
        ({"spec.model.quantization": "fp8"}, "spec.model.quantization"),
        ({"spec.trainer.routerReplay": True}, "spec.trainer.routerReplay"),
        ({"spec.algorithm": {"type": "grpo"}, "spec.rollout.maxStaleness": 1}, "spec.rollout.maxStaleness"),
        ({f"{ENGINES}.count": 0}, f"{ENGINES}.count"),
    ],
)
def test_what_they_do_not_do_is_refused(changes: dict[str, Any], path: str) -> None:
    assert path in [fault.path for fault in faults(manifest({ENGINES: {}} | changes))]
