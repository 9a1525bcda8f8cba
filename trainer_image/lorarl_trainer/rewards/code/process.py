"""Our end of a sandbox: it is started without anything of this process, and ended with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lorarl_trainer
from lorarl_trainer.rewards.code.program import End, digest_of

MOST_OUTPUT_BYTES = 1 << 20
"""What a program may print in one test."""
_GRACE_SECONDS = 10.0  # the sandbox keeps a test's limit itself; past this, the sandbox hangs
_START = "import sys; sys.path.append(sys.argv[1]); from lorarl_trainer.rewards.code.sandbox import main; main()"
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime")
_ENDED = "the sandbox ended"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


class RefusedError(Exception):
    """No sandbox can run here. Its argument says what the machine is."""


class BrokenError(Exception):
    """The sandbox itself ended or hangs, whatever the program did. Its argument says how."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a test ended.

    Attributes:
        end: by itself or why not.
        message: the same in detail.
        output: digest of what the program printed.
    """

    end: End
    message: str
    output: str

    def passed(self, expected: str | None) -> bool:
        """Whether the test passed; `expected` is what the program should print, None if it has assertions."""
        return self.end == "ended" and (expected is None or self.output == digest_of(expected))


class Sandbox:
    """A process that runs programs without rights. Only one thread uses it; any thread may end it."""

    def __init__(self, *, memory_bytes: int, require_landlock: bool) -> None:
        """Nothing starts before `start`."""
        self._settings = {
            "readable": readable_paths(),
            "landlock": require_landlock,
            "memory": memory_bytes,
            "output": MOST_OUTPUT_BYTES,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._over = False

    @property
    def pid(self) -> int | None:
        """Number of the sandbox's process; None if it was not started or has ended."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the sandbox unless it runs.

        Raises:
            RefusedError: none can run here.
            BrokenError: it ended.
        """
        with self._starting:
            if self._over:
                raise BrokenError(_ENDED)
            if self._process is not None:
                return
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-S", "-P", "-c", _START, str(Path(lorarl_trainer.__path__[0]).parent)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=_environment(),
                start_new_session=True,
            )
        if refusal := self._ask(self._settings, 60.0).get("refused"):
            self.close()
            raise RefusedError(refusal)

    def run(self, code: str, assertions: str | None, given: str, seconds: float) -> Verdict:
        """Run one test of a program.

        Raises:
            BrokenError: the sandbox ended or hangs; it was closed, and `start` makes another.
        """
        job = {"code": code, "test": assertions, "input": given, "seconds": seconds}
        answer = self._ask(job, seconds + _GRACE_SECONDS)
        return Verdict(answer["end"], answer["message"], answer["output"])

    def end(self) -> None:
        """End the sandbox and the program in it, for good."""
        with self._starting:
            self._over = True
            if self._process is not None:
                _kill(self._process)

    def close(self) -> None:
        """End the sandbox and the program in it. Only the thread that uses it may call this."""
        process, self._process = self._process, None
        if process is None:
            return
        _kill(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what could not be sent
                    pipe.close()

    def _ask(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise BrokenError(_ENDED)
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            line = _line(process.stdout.fileno(), time.monotonic() + seconds)
        except (OSError, EOFError):
            self.close()
            raise BrokenError(_ENDED) from None
        except TimeoutError:
            self.close()
            raise BrokenError(f"the sandbox said nothing for {seconds:g} s") from None
        answer: dict[str, Any] = json.loads(line)
        return answer


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:  # else its number may be another's, and the kernel has ended the program with it
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def readable_paths() -> list[str]:
    """Return what a program may read: Python, its packages, and the libraries of the system."""
    python = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    dynamic = [str(Path(path) / "lib-dynload") for path in python[:2]]
    return list(dict.fromkeys([*python[:2], *dynamic, *python[2:], *_SYSTEM, *_DEVICES]))


def _environment() -> dict[str, str]:
    """Return all of a sandbox's environment: ours has keys. With one order of sets, a program prints the same twice."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {"LANG": "C.UTF-8", "HOME": "/", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", **one_thread}


def _line(descriptor: int, deadline: float) -> bytes:
    """Read one line. The sandbox sends no more than that, so nothing is left over."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    line = bytearray()
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not poller.poll(left * 1000):
            raise TimeoutError
        chunk = os.read(descriptor, 65_536)
        if not chunk:
            raise EOFError
        line += chunk
    return bytes(line)
