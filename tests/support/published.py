"""Versions of an adapter, as the trainer reports them and as they are published."""

from __future__ import annotations

from typing import Any


def digest(step: int) -> str:
    return f"{step:08x}" * 8


def model(step: int, name: str = "sums") -> str:
    return f"{name}-{step}-{step:08x}"


def best(step: int, value: float, **others: Any) -> dict[str, Any]:
    """What the trainer reports."""
    uri = f"s3://team/adapters/sums/iter_{step:07d}/lora_adapter"
    return {"uri": uri, "step": step, "metric": "eval_score", "value": value, "sha256": digest(step), **others}
