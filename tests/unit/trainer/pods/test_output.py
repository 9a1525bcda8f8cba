"""What a worker prints is in its container's log, also the last words before it is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WORKER = """
import os, signal, sys
from pathlib import Path
from lorarl_trainer.pods.output import show_in_pod_log
print(":actor_name:Worker")
print("imports")
shown = [Path(os.environ["SHOWN"])] if "SHOWN" in os.environ else []
os.write(3, f"{show_in_pod_log('worker 1', 'The steps are elsewhere.', shown)}".encode())
print("loading  1%\\rloading 100%")
print("a warning", file=sys.stderr)
sys.stdout.write("fatal: no mem")
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
AGENT = f"""
import subprocess, sys
with open("out", "w") as out, open("err", "w") as err:
    worker = subprocess.Popen([sys.executable, "-u", "-c", {WORKER!r}], stdout=out, stderr=err, pass_fds=[3])
worker.wait()
"""
START = f"""
import os, subprocess, sys
os.dup2(2, 3)  # where the worker says whether it could
agent = subprocess.Popen([sys.executable, "-c", {AGENT!r}], stdout=subprocess.DEVNULL, pass_fds=[3])
agent.wait()
"""


def ray(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a process that starts an agent, which starts a worker: Ray's in a pod. Its output ends with all of theirs."""
    command = [sys.executable, "-c", START, "start", *arguments]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)


def test_all_that_a_worker_printed_is_in_the_container_s_log(tmp_path: Path) -> None:
    ended = ray(tmp_path, "--block")
    assert ended.stderr == "True"
    first, *others = ended.stdout.splitlines()
    assert first == "[worker 1] The steps are elsewhere."
    printed = ["[worker 1] imports", "[worker 1] loading 100%", "[worker 1] fatal: no mem", "[worker 1] a warning"]
    assert sorted(others) == sorted(printed), "each line once, without Ray's own, and the last one of a progress bar"


def test_a_file_that_is_named_is_shown_in_the_place_of_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an engine's, which is another process."""
    (tmp_path / "engine.log").write_text("no room")
    monkeypatch.setenv("SHOWN", str(tmp_path / "engine.log"))
    assert ray(tmp_path, "--block").stdout.splitlines() == ["[worker 1] The steps are elsewhere.", "[worker 1] no room"]


def test_other_processes_get_no_output(tmp_path: Path) -> None:
    """Without `--block` Ray's agent belongs to the first process that there is, whose output is not ours."""
    ended = ray(tmp_path)
    assert (ended.stdout, ended.stderr) == ("", "False")


def test_a_process_without_files_of_its_own_has_none_to_show() -> None:
    program = "from lorarl_trainer.pods.output import show_in_pod_log; print(show_in_pod_log('worker 0', 'here'))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"
