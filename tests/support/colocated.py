"""Fixtures of the tiers that run engine and trainer in the test's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import tiny_models
from support.both_backends import backend_of
from support.in_process import Colocated


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the folder of a tiny model by its architecture's name, made once."""
    root = tmp_path_factory.mktemp("models")

    def folder(architecture: str) -> Path:
        path = root / architecture
        return path if path.exists() else tiny_models.save(architecture, path)

    return folder


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """Which backend trains, unless a test asks its worker for another."""
    return backend_of(request)


@pytest.fixture
def colocated(model_folder: Callable[[str], Path], tmp_path: Path, backend: str) -> Iterator[Callable[..., Colocated]]:
    """Starts workers in this process: engine and trainer on one tiny model."""
    started: list[Colocated] = []

    def start(architecture: str = "qwen3-tied", adapters: int = 1, **changes: object) -> Colocated:
        """`trainer__backend=None` leaves the choice to the model. `adapters`: that the engine has at a time."""
        fields = {"trainer__backend": backend} | changes
        fields = {field: value for field, value in fields.items() if value is not None}
        worker = Colocated(model_folder(architecture), tmp_path, adapters, **fields)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.close()
