"""Programs that run beside a test: found, started on free ports of loopback, ended by their id or with the test."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

CACHE = Path(os.environ.get("LORARL_CACHE") or Path.home() / ".cache/lorarl")
STOP_SECONDS = 30.0
POLL_SECONDS = 0.05
PATIENCE = 3.0
"""Tests wait this many times longer than a quiet machine would need, so that a busy one fails no test."""
# Isolated and without site: it starts in a few milliseconds, and leaves the command's own environment alone.
_DIE_WITH_PARENT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("die_with_parent.py")))
# For the kernel, a program's parent is the THREAD that started it, and the program ends with it. So this thread starts
# all of them, and lives as long as the process. The thread that asks for a program may end earlier.
_STARTER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="starter")


class ToolMissingError(Exception):
    """A program, or what comes with it, was not found; the text says how to get it."""


def find(name: str) -> str:
    """The path of a binary: in KUBEBUILDER_ASSETS, in the cache of `scripts/tools.sh`, or on PATH."""
    folders = [os.environ.get("KUBEBUILDER_ASSETS"), str(CACHE / "bin"), os.environ.get("PATH")]
    found = shutil.which(name, path=os.pathsep.join(folder for folder in folders if folder))
    if found is None:
        raise ToolMissingError(
            f"{name} is neither in KUBEBUILDER_ASSETS nor in {CACHE}/bin nor on PATH; scripts/tools.sh builds it"
        )
    return found


def find_share(tool: str) -> Path:
    """The folder of what `scripts/tools.sh` keeps beside a binary: its manifests."""
    folder = CACHE / "share" / tool
    if not folder.is_dir():
        raise ToolMissingError(f"{folder} is not there; scripts/tools.sh {tool} makes it")
    return folder


def free_ports(count: int) -> list[int]:
    """Free ports of loopback, which no connection gets meanwhile: connections have ports from 32768.

    Each process of pytest-xdist has its own thousand, so that two never choose the same before either listens.
    """
    first = 20_000 + 1000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10)
    found: list[int] = []
    for port in random.SystemRandom().sample(range(first, first + 1000), 1000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            break
    return found


def listens(port: int) -> bool:
    """Whether somebody listens on this port of the loopback interface."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class Process:
    """A program in the background, with its log. It never outlives this process, even if that is killed (-9)."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        with log.open("ab") as output:
            started = _STARTER.submit(
                subprocess.Popen,
                [*_DIE_WITH_PARENT, str(os.getpid()), *command],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )
            self._popen: subprocess.Popen[bytes] = started.result()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def ended(self) -> bool:
        return self._popen.poll() is not None

    def tail(self) -> str:
        """The end of its output."""
        return self.log.read_text(errors="replace")[-3000:]

    def must_run(self) -> None:
        """Fail when it has ended."""
        code = self._popen.poll()
        assert code is None, f"{self.log.stem} ended with {code}:\n{self.tail()}"

    def wait(self, seconds: float) -> int:
        """Its exit status, when it has ended by itself within so long."""
        return self._popen.wait(timeout=seconds)

    def kill(self) -> None:
        """End it at once (-9)."""
        self._popen.kill()
        self._popen.wait()

    def stop(self) -> None:
        """Ask it to end, and end it when it does not."""
        self._popen.terminate()
        try:
            self._popen.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def running(command: list[str], log: Path, environment: Mapping[str, str] | None = None) -> Iterator[Process]:
    """Run a program until the block ends."""
    process = Process(command, log, environment or {})
    try:
        yield process
    finally:
        process.stop()


def until[T](
    seconds: float,
    what: str,
    probe: Callable[[], T | None],
    process: Process | None = None,
    *,
    patience: float = PATIENCE,
) -> T:
    """The first answer of `probe` that is neither None nor false; `process`, where there is one, must live that long.

    Raises:
        AssertionError: There was none within `patience` times `seconds`; the text says `what` was waited for.
    """
    seconds *= patience
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        if process is not None:
            process.must_run()
        if time.monotonic() > deadline:
            raise AssertionError(
                f"{what}: not so after {seconds:g} s" + (f"\n{process.tail()}" if process is not None else "")
            )
        time.sleep(POLL_SECONDS)
    return answer
