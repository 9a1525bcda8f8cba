"""The run tier: `lorarl run` as a user runs it, with Ray, Megatron and vLLM, on a model that trains in seconds.

`make test` runs it with two processes of pytest (`-n 2 --dist loadfile`), because a start keeps little more than one
core busy. Tests of one file stay in one process, in their order: many of them continue the job of the test before.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from run.command import Ended, Running
from run.jobs import Job
from support.both_backends import backend_of, with_either_backend
from support.cores import take_share

TESTS = Path(__file__).resolve().parents[1]


take_share()

LONGEST = (
    "test_two_nodes",
    "test_real_model",
    "test_in_cluster",
    "test_interruptions",
    "test_storage_that_fails",
    "test_same_bytes",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that pytest's processes end at about the same time."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def made_once[T](factory: pytest.TempPathFactory, name: str, make: Callable[[Path], T]) -> T:
    """Return what `make` returns for a new folder. Pytest's processes share it: the first that asks makes it."""
    own = factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    result = shared / f"{name}.pickle"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            folder = shared / name
            folder.mkdir()
            result.write_bytes(pickle.dumps(make(folder)))
    made: T = pickle.loads(result.read_bytes())
    return made


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base model, made in its own process: pytest's needs no torch."""

    def make(folder: Path) -> Path:
        search = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        subprocess.run(
            [sys.executable, Path(__file__).with_name("make_base.py"), folder],
            check=True,
            env={**os.environ, "PYTHONPATH": search},
        )
        return folder

    return made_once(tmp_path_factory, "base", make)


@pytest.fixture(autouse=True)
def _no_run_outlives_its_test() -> Iterator[None]:
    """End what a failed test left running, so that it does not disturb the next test."""
    yield
    for run in list(Running.under_way):
        run.kill()
        run.end()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """See `support.both_backends`."""
    with_either_backend(metafunc, scope="session")


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    """What trains."""
    return backend_of(request)


@pytest.fixture
def job(base: Path, backend: str, tmp_path: Path) -> Job:
    return Job(tmp_path, base, backend=backend)


@pytest.fixture(scope="session")
def _reference(base: Path, backend: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Ended]:
    def make(folder: Path) -> tuple[Job, Ended]:
        job = Job(folder, base, backend=backend)
        ended = job.run()
        assert ended.code == 0, ended
        return job, ended

    return made_once(tmp_path_factory, f"reference-{backend}", make)


@pytest.fixture(scope="session")
def reference_job(_reference: tuple[Job, Ended]) -> Job:
    """The job of `reference`."""
    return _reference[0]


@pytest.fixture(scope="session")
def reference(_reference: tuple[Job, Ended]) -> Ended:
    """The job, run from start to end without a disturbance: every other run has to end in its bytes."""
    return _reference[1]
