"""What a step takes of a GPU's memory: never more than planned, and at most a tenth less if micro-batches are full."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GENERATED = 256
"""Tokens of a response at most, as in step_memory.py."""
LONG_PROMPTS = {
    "algorithm__groupSize": 16,
    "rollout__promptsPerStep": 8,
    "rollout__maxPromptTokens": 4096,
    "rollout__maxResponseTokens": 256,
}
FULL = {
    "algorithm__groupSize": 8,
    "rollout__promptsPerStep": 32,
    "rollout__maxPromptTokens": 256,
    "rollout__maxResponseTokens": 224,  # 8 groups are a micro-batch of 16,384 tokens
    "trainer__tokensPerMicroBatch": 16_384,
}
LONGEST_CACHE = FULL | {"rollout__maxResponseTokens": 16_000, "trainer__tokensPerMicroBatch": 16_384}


def measured(model: Path, folder: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """Return what the last of three steps took, in GB, and what was planned."""
    script = Path(__file__).with_name("step_memory.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parents[1]), *sys.path])}
    subprocess.run([sys.executable, script, model, folder, json.dumps(fields)], env=environment, check=True)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    print(f"\ntook {report['taken']:.1f} GB, planned {report['planned']:.1f}, held {report['held']:.1f}")
    print(report["plan"], report["seconds"], f"{report['retries']} allocations found no room at first", sep="\n")
    return report


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("1.5B", FULL),
        ("7B", FULL | {"rollout__offload": "[]"}),
        ("7B", FULL | {"rollout__offload": "[kv_cache]"}),
        ("7B", FULL | {"trainer__recompute": "selective"}),
        ("7B", FULL | {"trainer__recompute": "full"}),
        ("7B", FULL | {"adapter__dropout": 0.1, "trainer__tokensPerMicroBatch": 8192}),
        ("7B", FULL | {"algorithm__type": "ppo"}),
        ("A3B", FULL | {"rollout__maxResponseTokens": 256}),
        ("A3B", FULL | {"rollout__maxResponseTokens": 256, "trainer__recompute": "selective"}),
        ("7B", LONG_PROMPTS),
        ("7B", LONGEST_CACHE),  # its cache takes all that is free
    ],
)
def test_a_step_takes_what_was_planned(
    name: str, fields: dict[str, Any], shape: Callable[[str], Path], tmp_path: Path
) -> None:
    report = measured(shape(name), tmp_path, fields)
    assert report["warnings"] == [] and report["taken"] <= report["planned"]
    if fields["rollout__maxResponseTokens"] <= GENERATED:
        assert max(report["taken"], report["held"]) >= 0.9 * report["planned"]


@pytest.mark.long
def test_answers_of_very_different_lengths_take_no_more(shape: Callable[[str], Path], tmp_path: Path) -> None:
    """No two micro-batches have the same size, and the KV cache has all that is free: `bench_gpu.py --work ragged`."""
    fields = {
        "algorithm__groupSize": 16,
        "rollout__promptsPerStep": 32,
        "rollout__maxPromptTokens": 256,
        "rollout__maxResponseTokens": 4096,
        "ragged": True,
    }
    report = measured(shape("7B"), tmp_path, fields)
    assert report["warnings"] == [] and report["taken"] <= report["planned"]
