"""One scoring process, and our end of the connection to it."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.rewards.output import Output
from lorarl_trainer.rewards.scores import Outcome, ToScore
from lorarl_trainer.rewards.worker import SLOW_SECONDS

START_SECONDS = 300.0
"""Time limit for importing the function's module."""
EXIT_SECONDS = 1.0
"""How long to wait for a process that closed its connection: one that crashed does so shortly before it ends."""
ENDED = "The reward's processes were ended while completions were being scored."
_LONGEST_POLL_SECONDS = 1e6


@dataclass(frozen=True)
class CodeFolders:
    """Folders where a user's own code may be.

    Attributes:
        folders: they are searched after the Python path; those of a source, before it.
        source: the source that they are copies of, for errors; empty if they are the user's own folders.
    """

    folders: tuple[str, ...]
    source: str = ""

    def python_path(self) -> list[str]:
        """Return the sys.path of a process."""
        return [*self.folders, *sys.path] if self.source else [*sys.path, *self.folders]


class CodeProcess:
    """A process with a user's code. It is restarted after it had to be ended.

    Only one thread uses it; any thread may start or close it.

    Attributes:
        program: what it runs.
        expected: what the manifest should name, for errors.
        variables: of its environment, beside the trainer's own.
        slow: what to do about a module that takes long to import.
        told: what the process said of the function when it was ready: of a reward, whether it is async.
    """

    program: ClassVar = Path(__file__).with_name("worker.py")
    expected: ClassVar = "a function package.module:function(prompt, completion, answer, row)"
    variables: ClassVar[Mapping[str, str]] = {}
    slow: ClassVar = f"Move slow work out of the module's top level, or wait (at most {START_SECONDS:g} s)."

    def __init__(self, function: str, code: CodeFolders, limit: float, field: str, output: Output) -> None:
        """Nothing starts before `start`."""
        self._function, self._code = function, code
        self._limit, self._field, self._output = limit, field, output
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._is_ready = self._closed = False
        self.told: Any = None

    def start(self) -> None:
        """Start the process unless it is running. It imports the function's module in the background.

        Raises:
            InputError: the program's interpreter is not there; see `_python`.
            LorarlError: `close` was called.
        """
        with self._starting:
            if self._closed:
                raise LorarlError(ENDED)
            if self._process is not None:
                return
            python = self._python()
            ours, theirs = socket.socketpair()
            # While a function holds the interpreter, nothing is read. Sending more than the socket's buffer takes waits
            # no longer than this.
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(self._limit) + 1, 0))
            with theirs:
                # -P: neither the folder of worker.py nor the working directory may shadow the standard library.
                command = [
                    python,
                    "-P",
                    str(self.program),
                    str(theirs.fileno()),
                    str(os.getpid()),
                ]
                # In its own session: the trainer alone handles Ctrl-C, and all that the function starts can be ended
                # with it.
                with self._output.open() as output:
                    self._process = subprocess.Popen(
                        command,
                        pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                        env={**os.environ, **self.variables},
                    )
            self._connection = Connection(ours.detach())
            code = self._code
            self._connection.send((self._function, self._search_path(), list(code.folders), code.source))

    def ready(self) -> None:
        """Wait until the process has loaded the function.

        Restart it if it died while idle, for example when memory ran out.

        Raises:
            InputError: there is no such module or function, its signature is wrong, or importing its module fails or
                hangs.
            LorarlError: `close` was called.
        """
        if self._process is not None and self._process.poll() is not None:
            self.end()
        self.start()
        if self._is_ready:
            return
        connection = self._open()
        try:
            reply = self._first_reply(connection)
        except (EOFError, OSError):
            got, hint = (
                f"{self._function}, whose module ended the process when imported: it {self.end(EXIT_SECONDS)}",
                "Fix the module.",
            )
        else:
            if reply is not None and reply[0] == "ready":
                self._is_ready, self.told = True, reply[1]
                return
            got, hint = (
                reply[1:]
                if reply
                else (
                    f"{self._function}, whose module was not imported within {START_SECONDS:g} s",
                    "Move slow work out of the module's top level.",
                )
            )
            self.end()
        raise InputError(self._field, got, self.expected, hint)

    def _python(self) -> str:
        """Return the interpreter of the program. Raises InputError if what it needs is not installed."""
        return sys.executable

    def _search_path(self) -> list[str]:
        """Return the program's sys.path, which it has before it loads the function."""
        return self._code.python_path()

    @property
    def function(self) -> str:
        """What it is to load, as the manifest names it."""
        return self._function

    @property
    def is_async(self) -> bool:
        """Whether a reward function is async; known once the process is ready."""
        return self.told is True

    def _first_reply(self, connection: Connection) -> tuple[Any, ...] | None:
        """Return what the process says of its function; None if it says nothing in START_SECONDS."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self._output.trim()
            if connection.poll(1.0):
                kind, *said = connection.recv()
                if kind != "importing":
                    return (kind, *said)
                self._output.warn_once(
                    f"{self._field}: {self._function}: its module has been importing for {SLOW_SECONDS:g} s and is at "
                    f"{said[0]}. {self.slow}"
                )
        return None

    def end(self, patience: float = 0.0) -> str:
        """End the process and everything that it started.

        Returns how it ended: its own exit if that came within `patience` seconds.
        """
        with self._starting:
            process, connection = self._process, self._connection
            self._process = self._connection = None
            self._is_ready = False
        if process is None or connection is None:
            return "was ended"
        ended = _kill(process, patience)
        connection.close()
        return ended

    def close(self, patience: float = 0.0) -> None:
        """End this process for good. One that ends what it started gets so many seconds for it."""
        with self._starting:
            self._closed = True
            process, connection = self._process, self._connection
        if connection is not None and patience:
            connection.close()
        if process is not None:
            _kill(process, patience)

    def _open(self) -> Connection:
        if self._connection is None:
            raise LorarlError(ENDED)
        return self._connection


class ScoringProcess(CodeProcess):
    """A process that calls the function (worker.py). Any thread may wake it."""

    def __init__(self, function: str, code: CodeFolders, limit: float, field: str, output: Output) -> None:
        super().__init__(function, code, limit, field, output)
        self._bell = os.eventfd(0)
        weakref.finalize(self, os.close, self._bell)

    def send(self, samples: Sequence[tuple[int, ToScore]]) -> None:
        """Send samples, each with a number that its outcome will have too.

        Raises:
            BlockingIOError: the process does not read them.
            OSError: the process is gone.
        """
        # Each sample by itself: pickled together, completions of one row would share it there, and a function that
        # changes the row or the prompt's messages would change them for the next completion.
        packed = [
            (number, pickle.dumps((s.prompt, s.completion, s.answer, s.row, s.truncated))) for number, s in samples
        ]
        self._open().send((self._limit, packed))

    def receive(self, seconds: float) -> tuple[int, Outcome] | None:
        """Wait for the next outcome; return None if `wake` is called or the time runs out first.

        Raises:
            EOFError, OSError: the process is gone.
        """
        connection = self._open()
        poller = select.poll()
        poller.register(connection.fileno(), select.POLLIN)
        poller.register(self._bell, select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll(max(0.0, min(seconds, _LONGEST_POLL_SECONDS)) * 1000)]
        if self._bell in ready:
            os.eventfd_read(self._bell)
        if connection.fileno() not in ready:
            return None
        number, *outcome = connection.recv()
        return number, Outcome(*outcome)

    def sleep(self) -> None:
        """Wait until `wake` is called. Returns at once if it was called since the last `sleep`."""
        os.eventfd_read(self._bell)

    def wake(self) -> None:
        """Wake the thread that waits in `receive` or `sleep`."""
        os.eventfd_write(self._bell, 1)

    def close(self, patience: float = 0.0) -> None:
        """End this process for good. The thread that waits for it notices."""
        super().close(patience)
        self.wake()


def _kill(process: subprocess.Popen[bytes], patience: float = 0.0) -> str:
    """End a process and its group. Returns how it ended: its own exit if that came within `patience` seconds."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    status = process.poll()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if status is None:
        return "was ended"
    return f"exited with code {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"
