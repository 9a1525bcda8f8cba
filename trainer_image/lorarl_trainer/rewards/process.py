"""One scoring process, and our end of the connection to it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.rewards.scores import Outcome, ToScore

START_SECONDS = 300.0
"""Longest time that importing the function's module may take."""
EXIT_SECONDS = 1.0
"""How long to wait for a process that hung up: one that crashed does so a moment before it is gone."""
ENDED = "The reward's processes were ended while completions were being scored."
_LONGEST_POLL_SECONDS = 1e6


class ScoringProcess:
    """A process that calls the function (worker.py). It is started anew after it had to be ended.

    One thread uses it; any thread may start, wake or close it.

    Attributes:
        is_async: whether the function is; known once it is ready.
    """

    def __init__(self, function: str, path: Sequence[str], limit: float, field: str) -> None:
        """Make it; nothing starts before `start`. `limit`: seconds a sample; `field`: the reward's path in the manifest."""
        self._function, self._path, self._limit, self._field = function, list(path), limit, field
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._bell = os.eventfd(0)
        weakref.finalize(self, os.close, self._bell)
        self._is_ready = self._closed = False
        self.is_async = False

    def start(self) -> None:
        """Start the process, unless it runs; it imports the function's module meanwhile.

        Raises:
            LorarlError: `close` was called.
        """
        with self._starting:
            if self._closed:
                raise LorarlError(ENDED)
            if self._process is not None:
                return
            ours, theirs = socket.socketpair()
            # While a function holds the interpreter nothing is read: what does not fit into the socket's buffer waits no longer than this.
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(self._limit) + 1, 0))
            with theirs:
                # -P: neither the folder of worker.py nor the working directory may hide modules of the standard library.
                command = [
                    sys.executable,
                    "-P",
                    str(Path(__file__).with_name("worker.py")),
                    str(theirs.fileno()),
                    str(os.getpid()),
                ]
                # A session of its own: Ctrl-C is the trainer's matter, and what the function starts can be ended with it.
                self._process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
                )
            self._connection = Connection(ours.detach())
            self._connection.send((self._function, self._path))

    def ready(self) -> None:
        """Wait until the process has the function; start it anew where it died while idle, as by the kernel when memory ran out.

        Raises:
            InputError: No such module or function, a wrong signature, or its module fails or does not end when imported.
            LorarlError: `close` was called.
        """
        if self._process is not None and self._process.poll() is not None:
            self.end()
        self.start()
        if self._is_ready:
            return
        connection = self._open()
        try:
            reply = connection.recv() if connection.poll(START_SECONDS) else None
        except (EOFError, OSError):
            got, hint = (
                f"{self._function}, whose module ended the process when imported: it {self.end(EXIT_SECONDS)}",
                "Mend the module.",
            )
        else:
            if reply is not None and reply[0] == "ready":
                self._is_ready, self.is_async = True, reply[1]
                return
            got, hint = (
                reply[1:]
                if reply
                else (f"{self._function}, whose module is not imported after {START_SECONDS:g} s", "Mend it.")
            )
            self.end()
        raise InputError(self._field, got, "a function package.module:function(prompt, completion, answer, row)", hint)

    def send(self, samples: Sequence[tuple[int, ToScore]]) -> None:
        """Hand over samples, each with a name that its outcome will have.

        Raises:
            BlockingIOError: it does not read them.
            OSError: it is gone.
        """
        self._open().send(
            (
                self._limit,
                [(name, sample.prompt, sample.completion, sample.answer, sample.row) for name, sample in samples],
            )
        )

    def receive(self, seconds: float) -> tuple[int, Outcome] | None:
        """Wait for the next outcome; None where `wake` was called or the time is over before.

        Raises:
            EOFError, OSError: it is gone.
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
        name, value, cause, message = connection.recv()
        return name, Outcome(value, cause, message)

    def sleep(self) -> None:
        """Wait until `wake` is called, or has been since the last time."""
        os.eventfd_read(self._bell)

    def wake(self) -> None:
        """Let the thread that waits in `receive` or `sleep` go on."""
        os.eventfd_write(self._bell, 1)

    def end(self, patience: float = 0.0) -> str:
        """End the process and what it started; say how it ended, by itself if it did within `patience` seconds."""
        with self._starting:
            process, connection = self._process, self._connection
            self._process = self._connection = None
            self._is_ready = False
        if process is None or connection is None:
            return "was ended"
        ended = _kill(process, patience)
        connection.close()
        return ended

    def close(self) -> None:
        """Let no other process start, and end this one; the thread that waits for it notices."""
        with self._starting:
            self._closed = True
            process = self._process
        if process is not None:
            _kill(process)
        self.wake()

    def _open(self) -> Connection:
        if self._connection is None:
            raise LorarlError(ENDED)
        return self._connection


def _kill(process: subprocess.Popen[bytes], patience: float = 0.0) -> str:
    """End a process with its group; say how it ended by itself, if it did within `patience` seconds."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    status = process.poll()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if status is None:
        return "was ended"
    return f"exited with code {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"
