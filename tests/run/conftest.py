"""The run tier: `lorarl run` as a user runs it, with Ray, Megatron and vLLM, on a model that trains in seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from run.command import Ended, Running
from run.jobs import Job

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base model, made in a process of its own: this one needs no torch."""
    folder = tmp_path_factory.mktemp("base")
    search = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    subprocess.run(
        [sys.executable, Path(__file__).with_name("make_base.py"), folder],
        check=True,
        env={**os.environ, "PYTHONPATH": search},
    )
    return folder


@pytest.fixture(autouse=True)
def _no_run_outlives_its_test() -> Iterator[None]:
    """End what a failed test left running: the next one is measured on a machine of its own."""
    yield
    for run in list(Running.under_way):
        run.kill()
        run.end()


@pytest.fixture
def job(base: Path, tmp_path: Path) -> Job:
    return Job(tmp_path, base)


@pytest.fixture(scope="session")
def reference_job(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The job of `reference`."""
    return Job(tmp_path_factory.mktemp("reference"), base)


@pytest.fixture(scope="session")
def reference(reference_job: Job) -> Ended:
    """The job, run from start to end by nobody disturbed: every other run has to end in its bytes."""
    ended = reference_job.run()
    assert ended.code == 0, ended
    return ended
