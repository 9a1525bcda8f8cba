"""Starts the command `lorarl` from Python. Ctrl-C here is Ctrl-C there, and nothing outlives this process."""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from lorarl_trainer.errors import LorarlError

_LOOKS_PER_SECOND = 5
_PREFIX = "lorarl: "
"""How the command begins its message about what ended it."""


class Command:
    """A `lorarl` command that runs. It has its own session: this process alone says when Ctrl-C reaches it."""

    def __init__(self, arguments: Sequence[str], output: Path, result: Path | None = None) -> None:
        """Start `lorarl` with these arguments. What it prints goes to the file `output`, its result to `result`."""
        self._output, self._read = output, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        command = [sys.executable, "-m", "lorarl.child", str(os.getpid()), *arguments]
        with output.open("wb") as file, result.open("wb") if result else contextlib.nullcontext(file) as stdout:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=file, start_new_session=True
            )

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def new_output(self) -> str:
        """Return what it printed since the last call."""
        with self._output.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        return self._decoder.decode(data)

    def message(self) -> str:
        """Return what it said about the error that ended it, without a prefix."""
        text = self._output.read_text(encoding="utf-8", errors="replace").rstrip()
        _, found, message = f"\n{text}".rpartition(f"\n{_PREFIX}")
        return message if found else text.rpartition("\n")[2]

    def interrupt(self) -> None:
        """Press Ctrl-C there: the first time the run publishes a checkpoint, the second time it ends at once."""
        if self.code is None:
            self._process.send_signal(signal.SIGINT)

    def wait(self, look: Callable[[], None]) -> int:
        """Wait for its end, calling `look` meanwhile; return the exit code.

        Raises:
            KeyboardInterrupt: someone pressed Ctrl-C, and the command has ended because of that.
        """
        interrupted = False
        while self.code is None:
            try:
                look()
                time.sleep(1 / _LOOKS_PER_SECOND)
            except KeyboardInterrupt:
                interrupted = True
                self.interrupt()
        look()
        if interrupted and self.code != 0:
            raise KeyboardInterrupt
        return self._process.returncode

    def __enter__(self) -> Self:
        """Return the command, which is ended with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        if self.code is None:
            self._process.kill()
            self._process.wait()


def printed_by(arguments: Sequence[str]) -> str:
    """Run a `lorarl` command that prints its result; return that. Its progress is printed here meanwhile.

    Raises:
        LorarlError: it failed. The message is its own.
    """
    with tempfile.TemporaryDirectory(prefix="lorarl-") as folder:
        result, progress = Path(folder, "result"), Path(folder, "progress")
        with Command(arguments, progress, result) as command:
            code = command.wait(lambda: print(command.new_output(), end="", file=sys.stderr, flush=True))
        if code:
            raise LorarlError(command.message())
        return result.read_text(encoding="utf-8")
