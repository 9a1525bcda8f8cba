"""Processes that import the libraries of a job's workers before a worker takes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from lorarl_api.load import load_job
from lorarl_trainer.workers import ahead
from unit.trainer.planning.jobs import cpu_job, gpu_job

ROOT = Path(__file__).parents[4]
SETTINGS = {ahead.MANIFEST, "RAY_preload_python_modules", "RAY_idle_worker_killing_time_threshold_ms"}


def settings() -> dict[str, str]:
    return {name: os.environ[name] for name in SETTINGS if name in os.environ}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_processes_read_the_same_job(path: Path) -> None:
    spec = load_job(path).spec
    with ahead.importing_ahead(spec):
        assert load_job(Path(os.environ[ahead.MANIFEST])).spec == spec


def test_settings_and_manifest_last_as_long_as_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_idle_worker_killing_time_threshold_ms", "5")
    before = settings()
    assert not ahead.imports_ahead()
    with ahead.importing_ahead(cpu_job()):
        assert ahead.imports_ahead() and settings().keys() == SETTINGS
        manifest = Path(os.environ[ahead.MANIFEST])
        assert manifest.exists()
    assert settings() == before and not manifest.exists()


def test_a_task_without_libraries_imports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with ahead.importing_ahead(cpu_job()):
        monkeypatch.setenv(ahead.MANIFEST, ahead.WITHOUT["env_vars"][ahead.MANIFEST])
        assert not ahead.imports_ahead()
        monkeypatch.undo()


def imported_by(environment: Mapping[str, str]) -> tuple[dict[str, str | bool | None], str]:
    """Import what Ray does in a new process; return what is so afterwards, and what was printed as an error."""
    code = (
        "import json, os, sys, lorarl_trainer.workers.preloaded\n"
        "from lorarl_trainer.workers import ahead\n"
        "found = {'torch': 'torch' in sys.modules, 'began': ahead.began() is not None}\n"
        "print(json.dumps(found | {'threads': os.environ.get('OMP_NUM_THREADS')}))"
    )
    clean = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, check=True
    )
    found: dict[str, str | bool | None] = json.loads(done.stdout)
    return found, done.stderr


@pytest.mark.slow
def test_a_process_imports_in_the_environment_of_its_worker() -> None:
    spec = load_job(ROOT / "examples/sft-cpu.yaml").spec
    with ahead.importing_ahead(spec):
        found, _ = imported_by(os.environ)
    assert found == {"torch": True, "began": True, "threads": str(ahead.threads_each(spec))}


def test_a_process_without_a_manifest_imports_nothing() -> None:
    assert imported_by({ahead.MANIFEST: ""})[0] == {"torch": False, "began": False, "threads": None}


def test_a_process_that_cannot_import_ahead_leaves_it_to_its_worker(tmp_path: Path) -> None:
    found, error = imported_by({ahead.MANIFEST: str(tmp_path / "gone.yaml")})
    assert found == {"torch": False, "began": True, "threads": None}
    assert "gone.yaml" in error


def test_workers_of_a_machine_share_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(5))
    assert ahead.threads_each(cpu_job()) == 5
    assert ahead.threads_each(gpu_job(gpus=2)) == 2
    assert ahead.environment(cpu_job(), 3)["OMP_NUM_THREADS"] == "3"
