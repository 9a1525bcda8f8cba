"""The part of a LoRARLJob that asks for two separate engines."""

from __future__ import annotations

from typing import Any

JOB: dict[str, Any] = {
    "algorithm": {"type": "grpo", "groupSize": 4},
    "reward": {"type": "exact"},
    "rollout": {"separateEngines": {"count": 2}},
    "cluster": {"gpusPerNode": 1, "cpusPerNode": "1", "memoryPerNode": "4Gi"},
    "backoffLimit": 0,
}
