"""Commands of the benchmarks on GPUs end with the benchmark, or after its minutes, and say what went wrong."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from side_by_side.systems import Systems, last_object

PATIENCE_SECONDS = 60.0
RUNS_A_COMMAND = """
import sys
from pathlib import Path
from side_by_side.systems import Systems

lives = "import sys, time; told = open(sys.argv[1], 'wb', 0); told.write(b'up'); time.sleep(600)"
Systems(Path(), 0, 1).command([sys.executable, "-c", lives, sys.argv[1]], ())
"""


def read(pipe: int) -> bytes:
    """What comes next out of a pipe: nothing once all that write into it have ended."""
    assert select.select([pipe], [], [], PATIENCE_SECONDS)[0], "nothing came"
    return os.read(pipe, 100)


def test_a_command_ends_when_the_benchmark_is_killed(tmp_path: Path) -> None:
    """Otherwise it would still have its GPUs when the benchmark continues."""
    told, script = tmp_path / "told", tmp_path / "script.py"
    os.mkfifo(told)
    script.write_text(RUNS_A_COMMAND)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    pipe = os.open(told, os.O_RDONLY | os.O_NONBLOCK)
    benchmark = subprocess.Popen([sys.executable, str(script), str(told)], env=environment)
    try:
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        assert poll.poll(1000 * PATIENCE_SECONDS), "the command did not start"
        assert read(pipe) == b"up"
        assert benchmark.poll() is None
    finally:
        benchmark.send_signal(signal.SIGKILL)
        benchmark.wait()
    assert read(pipe) == b"", "the command has ended"
    os.close(pipe)


def test_a_failed_command_shows_its_errors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    systems = Systems(tmp_path, 0, 1)
    with pytest.raises(subprocess.CalledProcessError):
        systems.command([sys.executable, "-c", "import sys; print('made'); sys.exit('no room')"], ())
    systems.close()
    assert "made" in (told := capfd.readouterr().err) and "no room" in told


def test_no_command_starts_after_the_minutes(tmp_path: Path) -> None:
    systems = Systems(tmp_path, 0, 1, minutes=0)
    with pytest.raises(subprocess.SubprocessError, match="left out: 0 minutes are over"):
        systems.command([sys.executable, "-c", f"open({str(tmp_path / 'started')!r}, 'w')"], ())
    systems.close()
    assert not (tmp_path / "started").exists()


def test_the_last_object_is_what_a_process_tells() -> None:
    assert last_object(['{"a": 1}', "a library's line", '{"a": 2}', "bye"]) == {"a": 2}
    with pytest.raises(IndexError):
        last_object(["bye"])
