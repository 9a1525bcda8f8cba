"""What a step takes of a GPU's memory: never more than planned, and at most a tenth less if micro-batches are full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

GENERATED = 256
"""Tokens of a response at most. Longer ones would take minutes."""
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
    name: str, fields: dict[str, Any], step_memory: Callable[..., dict[str, Any]]
) -> None:
    report = step_memory(name, fields, GENERATED)
    assert report["warnings"] == [] and report["taken"] <= report["planned"]
    if fields["rollout__maxResponseTokens"] <= GENERATED:
        assert max(report["taken"], report["held"]) >= 0.9 * report["planned"]


@pytest.mark.long
def test_answers_of_very_different_lengths_take_no_more(step_memory: Callable[..., dict[str, Any]]) -> None:
    """No two micro-batches have the same size, and the KV cache has all that is free: `bench_gpu.py --work ragged`."""
    fields = {
        "algorithm__groupSize": 16,
        "rollout__promptsPerStep": 32,
        "rollout__maxPromptTokens": 256,
        "rollout__maxResponseTokens": 4096,
    }
    report = step_memory("7B", fields, 0)
    assert report["warnings"] == [] and report["taken"] <= report["planned"]
