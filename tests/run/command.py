"""The command `lorarl run`, started as a user starts it: its output, its files, and the processes that it leaves."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import psutil

from lorarl_trainer.progress import is_time_column, read_rows

COMMAND = [sys.executable, "-m", "lorarl_trainer.cli", "run"]
PATIENCE_SECONDS = 240.0
"""How long a test waits for a run, or for a moment in it."""
LAST_SECONDS = 30.0
"""Longest time that the command's processes may take to end after it. A starting Ray worker first comes up."""
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Ended:
    """A run that has ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    out: Path
    left_running: list[str]
    left_in_memory: list[str]

    @property
    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.out / "run_summary.json").read_text()))

    @property
    def rows(self) -> list[dict[str, Any]]:
        return read_rows(self.out / "metrics.jsonl")

    @property
    def rows_but_for_times(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in row.items() if not is_time_column(name)} for row in self.rows]

    @property
    def adapter_uri(self) -> str:
        return str(self.summary["adapter_uri"])

    @property
    def adapter_digest(self) -> str:
        """The digest of the adapter that the summary names, in a local folder."""
        return digest(local_folder(self.adapter_uri) / "adapter_model.safetensors")

    def __str__(self) -> str:
        """All output and logs, which pytest shows when a test fails."""
        logs = [f"--- {log}\n{log.read_text(errors='replace')[-3000:]}" for log in sorted(self.out.glob("logs/*.log"))]
        return "\n".join([f"exit code {self.code}", "--- stdout", self.stdout, "--- stderr", self.stderr, *logs])

    __repr__ = __str__


class Running:
    """A run under way. It remembers every process that the run starts, to find those that outlive it."""

    under_way: ClassVar[set[Running]] = set()
    """The runs that no test has waited for yet."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        out: Path,
        environment: Mapping[str, str],
        *,
        terminal: bool = False,
        through: Sequence[str] = (),
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.out = out
        command = [*through, *command, *arguments]
        self._stdout, self._stderr = folder / "stdout.txt", folder / "stderr.txt"
        self._memory = set(SHARED_MEMORY.iterdir())
        self._family: set[psutil.Process] = set()
        self._watching = threading.Lock()
        self._over = threading.Event()
        self._began = time.monotonic()
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            if terminal:
                self._keyboard, screen = pty.openpty()
                # setsid makes `screen` the controlling terminal and becomes the command.
                self.process = psutil.Popen(
                    ["setsid", "--ctty", *command],
                    cwd=folder,
                    env=environment,
                    stdin=screen,
                    stdout=screen,
                    stderr=screen,
                )
                os.close(screen)
                threading.Thread(target=self._copy_screen, daemon=True).start()
            else:
                streams = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": stderr}
                self.process = psutil.Popen(command, cwd=folder, env=environment, start_new_session=True, **streams)
        threading.Thread(target=self._watch, daemon=True).start()
        self.under_way.add(self)

    def wait_until(self, reached: Callable[[], Any], what: str, every: float = 0.01) -> Any:
        """Wait for a moment in the run, asking each `every` seconds, and return what `reached` returned.

        Fail if the run ends before.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (value := reached()):
            over = self.process.poll() is not None
            if over and not reached():
                raise AssertionError(f"the run ended before {what}\n{self.end()}")
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"{PATIENCE_SECONDS:g} s were not enough for {what}\n{self.end()}")
            time.sleep(every)
        return value

    def wait_for_step(self, step: int) -> None:
        """Wait until `step` is done."""
        path = self.out / "metrics.jsonl"
        self.wait_until(lambda: any(row["step"] >= step for row in read_rows(path)), f"step {step} was done")

    def wait_for_output(self, text: str) -> None:
        self.wait_until(lambda: text in self.stdout + self.stderr, f"it said {text!r}")

    def let_pass(self, seconds: float) -> None:
        """Let it run for `seconds`, or to its end."""
        with contextlib.suppress(psutil.TimeoutExpired):
            self.process.wait(seconds)

    @property
    def stdout(self) -> str:
        return self._stdout.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def processes(self, name: str) -> list[psutil.Process]:
        """The run's living processes with `name` in their command lines."""
        with self._watching:
            return [process for process in self._family if _alive(process) and name in _command_line(process)]

    def signal(self, number: signal.Signals) -> None:
        """Signal only the command, as `kill PID` and the end of a pod do."""
        self.process.send_signal(number)

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the whole process group, as `timeout` does."""
        os.killpg(self.process.pid, number)

    def press_ctrl_c(self) -> None:
        """Let the terminal interrupt everything that runs in it."""
        os.write(self._keyboard, b"\x03")

    def kill(self) -> None:
        """End the whole process group, as kill -9 does, or the kernel when memory is full."""
        self._look()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> Ended:
        """Wait until the command has ended; return what it printed and what it left behind."""
        try:
            code = self.process.wait(PATIENCE_SECONDS)
        except psutil.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the run did not end\n{self.end()}") from None
        self._over.set()
        self.under_way.discard(self)
        seconds = time.monotonic() - self._began
        with self._watching:
            family = list(self._family)
        left = [process for process in family if _alive(process)]
        psutil.wait_procs(left, LAST_SECONDS)
        running = [f"{process.pid} {_command_line(process)}" for process in left if _alive(process)]
        for process in left:  # so that they do not disturb the next test
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return Ended(code, self.stdout, self.stderr, seconds, self.out, running, self._left_in_memory())

    def _left_in_memory(self) -> list[str]:
        """Return the files in shared memory that are new since the start and that no process uses.

        Another test's run may be under way. Its files are in use, or disappear soon.
        """
        deadline = time.monotonic() + LAST_SECONDS
        while left := [path for path in SHARED_MEMORY.iterdir() if path not in self._memory and not _is_used(path)]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        return [str(path) for path in sorted(left)]

    def _watch(self) -> None:
        # An event ends this: to poll the process here could take its exit code away from `end`.
        while not self._over.wait(0.1):
            self._look()

    def _look(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess), self._watching:
            self._family |= set(self.process.children(recursive=True))

    def _copy_screen(self) -> None:
        with (
            self._stdout.open("ab", buffering=0) as file,
            contextlib.suppress(OSError),
        ):  # the terminal ends with an error
            while data := os.read(self._keyboard, 65536):
                file.write(data)


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def local_folder(uri: str) -> Path:
    """The folder of an absolute file: URI."""
    parts = urlsplit(uri)
    assert parts.scheme == "file" and parts.path.startswith("/"), uri
    return Path(unquote(parts.path))


def kill_with_engine(server: int) -> None:
    """End a server of vLLM at once (-9), with the engine in a separate process, which would continue without it."""
    parts = psutil.Process(server).children(recursive=True)
    for part in [psutil.Process(server), *parts]:
        part.kill()
    psutil.wait_procs(parts)


def _is_used(file: Path) -> bool:
    """Whether a living process has mapped the file or has it open."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if any(str(file) in mapping.path for mapping in process.memory_maps()):
                return True
            if any(Path(opened.path) == file for opened in process.open_files()):
                return True
    return False


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
