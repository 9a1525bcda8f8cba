"""Processes that import the libraries of a job's workers before a worker takes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.ahead import PRELOAD
from lorarl_api.load import load_job
from lorarl_trainer.workers import ahead
from unit.trainer.planning.jobs import cpu_job, gpu_job

ROOT = Path(__file__).parents[4]
SETTINGS = {PRELOAD, "RAY_preload_python_modules", "RAY_idle_worker_killing_time_threshold_ms"}

THREADS, ALL_GPUS = VARIABLES = "OMP_NUM_THREADS", "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
NOTHING = {"torch": False, "began": False, THREADS: None, ALL_GPUS: None}


def settings() -> dict[str, str]:
    return {name: os.environ[name] for name in SETTINGS if name in os.environ}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_processes_read_the_same_job(path: Path) -> None:
    spec = load_job(path).spec
    with ahead.importing_ahead(spec):
        assert load_job(Path(os.environ[PRELOAD])).spec == spec


def test_settings_and_manifest_last_as_long_as_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_idle_worker_killing_time_threshold_ms", "5")
    before = settings()
    assert not ahead.imports_ahead()
    with ahead.importing_ahead(cpu_job()):
        assert ahead.imports_ahead() and settings().keys() == SETTINGS
        manifest = Path(os.environ[PRELOAD])
        assert manifest.exists()
    assert settings() == before and not manifest.exists()


def test_a_task_without_libraries_imports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with ahead.importing_ahead(cpu_job()):
        monkeypatch.setenv(PRELOAD, ahead.WITHOUT["env_vars"][PRELOAD])
        assert not ahead.imports_ahead()
        monkeypatch.undo()


def imported_by(environment: Mapping[str, str]) -> tuple[Mapping[str, Any], str]:
    """Import what Ray does in a new process; return what is so afterwards, and what was printed as an error."""
    code = (
        "import json, os, sys, lorarl_trainer.workers.preloaded\n"
        "from lorarl_trainer.workers import ahead\n"
        "variables = {name: os.environ.get(name) for name in sys.argv[1:]}\n"
        "print(json.dumps({'torch': 'torch' in sys.modules, 'began': ahead.parts() != []} | variables))"
    )
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [sys.executable, "-c", code, *VARIABLES]
    done = subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True)
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found, done.stderr


@pytest.mark.slow
def test_a_process_imports_in_the_environment_of_its_worker() -> None:
    spec = load_job(ROOT / "examples/sft-cpu.yaml").spec
    with ahead.importing_ahead(spec):
        found, _ = imported_by(os.environ)
    assert found == NOTHING | {"torch": True, "began": True, THREADS: ahead.environment(spec)[THREADS]}


@pytest.mark.slow
def test_workers_of_one_machine_see_all_its_gpus() -> None:
    """Ray reads the variable when it gives such a process to a worker. This machine has not the libraries for CUDA."""
    spec = gpu_job("trainer.backend=megatron", gpus=2)
    with ahead.importing_ahead(spec):
        found, _ = imported_by(os.environ)
    assert (found[ALL_GPUS], found[THREADS]) == ("1", ahead.environment(spec)[THREADS])


def test_a_process_without_a_manifest_imports_nothing() -> None:
    assert imported_by({PRELOAD: ""})[0] == NOTHING


def test_a_process_that_cannot_import_ahead_leaves_it_to_its_worker(tmp_path: Path) -> None:
    found, error = imported_by({PRELOAD: str(tmp_path / "gone.yaml")})
    assert found == NOTHING | {"began": True}
    assert "gone.yaml" in error


def test_workers_of_a_machine_share_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(5))
    assert ahead.environment(cpu_job())[THREADS] == "5"
    assert ahead.environment(gpu_job(gpus=2))[THREADS] == "2"
    assert ahead.environment(gpu_job(gpus=8))[THREADS] == "1"


def test_a_worker_with_a_gpu_leaves_threads_to_other_pods_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(192))
    assert ahead.environment(gpu_job(gpus=1))[THREADS] == "8"
    assert ahead.environment(cpu_job())[THREADS] == "192"
