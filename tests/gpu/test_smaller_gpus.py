"""Plans for GPUs of 24, 48 and 80 GB, kept on a larger one: the process may take no more than such a GPU has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

RESPONSE_TOKENS = 1024
FIELDS = {
    "algorithm__groupSize": 8,
    "rollout__promptsPerStep": 64,
    "rollout__maxPromptTokens": 512,
    "rollout__maxResponseTokens": RESPONSE_TOKENS,
}
"""Nothing else is set: `tests/unit/trainer/planning/test_choice.py` has the plans."""


@pytest.mark.long
@pytest.mark.parametrize(("name", "gigabytes"), [("0.5B", 24), ("1.5B", 24), ("1.5B", 48), ("7B", 48), ("7B", 80)])
def test_a_step_takes_no_more_than_the_plan_says(
    name: str, gigabytes: int, step_memory: Callable[..., dict[str, Any]]
) -> None:
    if torch.cuda.get_device_properties(0).total_memory < gigabytes * 1e9:
        pytest.skip("this GPU is no larger")
    report = step_memory(name, FIELDS, RESPONSE_TOKENS, gigabytes)
    assert report["warnings"] == [] and report["taken"] <= report["planned"]
