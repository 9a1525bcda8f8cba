"""Tests that run with either trainer backend: those with the marker `both_backends`."""

from __future__ import annotations

from typing import Literal

import pytest

BACKEND = "megatron"
"""Of tests without the marker."""


def with_either_backend(metafunc: pytest.Metafunc, scope: Literal["function", "session"]) -> None:
    """Run a test with the marker, and a fixture `backend` of this scope, with both. fsdp is long unless it is quick."""
    marker = metafunc.definition.get_closest_marker("both_backends")
    if marker and "backend" in metafunc.fixturenames:
        marks = [] if marker.kwargs.get("quick") else [pytest.mark.long]
        backends = [BACKEND, pytest.param("fsdp", marks=marks)]
        metafunc.parametrize("backend", backends, indirect=True, scope=scope)


def without_shared_adapters(items: list[pytest.Item]) -> None:
    """Leave out fsdp with `adapter.type: lora`, which it refuses (`test_both_backends.py`)."""
    items[:] = [item for item in items if not _is_refused(item)]


def _is_refused(item: pytest.Item) -> bool:
    chosen = getattr(getattr(item, "callspec", None), "params", {})
    return chosen.get("backend") == "fsdp" and chosen.get("adapter_type") == "lora"


def backend_of(request: pytest.FixtureRequest) -> str:
    """Return what the fixture `backend` is."""
    return str(getattr(request, "param", BACKEND))
