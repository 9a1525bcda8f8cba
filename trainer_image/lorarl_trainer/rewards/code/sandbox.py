"""The program of a sandbox: it gives up its rights, and then runs tests, each in its own process.

It imports only the standard library, and starts with nothing of the trainer's environment. It never runs a completion's
code itself, so it may serve many completions. On its standard input and output are lines of JSON:

    to it:    {"readable": [paths], "landlock": is it required, "memory": bytes, "output": bytes}   once
    from it:  {"ready": true}  or  {"refused": what was got}                                         once
    to it:    {"code": program, "test": assertions or null, "input": text, "seconds": limit}
    from it:  {"end": End, "message": in detail, "output": digest of what was printed}

What a program should print is not sent, so no program can look it up.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lorarl_trainer.rewards.code.confinement import (
    be_ended_first,
    drop_privileges,
    landlock_version,
    restrict_files,
)
from lorarl_trainer.rewards.code.supervision import run
from lorarl_trainer.rewards.code.system_calls import MACHINE, install

_CHUNK = 65_536


def main() -> None:
    """Serve until the trainer closes the connection or is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a trainer that ignores it passes that on: how a test ends is lost
    lines = _lines(0)
    settings, parent = next(lines), os.getppid()
    if refusal := confine(settings):
        _reply({"refused": refusal})
        return
    sys.path[:] = [path for path in settings["readable"] if Path(path).is_dir()]
    _reply({"ready": True})
    for job in lines:
        _reply(run(job, settings["memory"], settings["output"], parent))


def confine(settings: Mapping[str, Any]) -> str | None:
    """Give up this process's rights. Returns what is wrong with the machine if that is impossible."""
    if os.uname().machine != MACHINE:
        return f"a machine of type {os.uname().machine}; the sandbox knows the system calls of {MACHINE} only"
    if landlock_version() == 0 and settings["landlock"]:
        return "a kernel without Landlock, which keeps programs from reading the trainer's files"
    try:
        be_ended_first()
        drop_privileges()
        if landlock_version() > 0:
            restrict_files(map(Path, settings["readable"]))
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                install(os.getpid())
                os._exit(0)
            os._exit(1)
    except OSError as error:
        return f"a machine where a process cannot give up its rights ({error})"
    return "a kernel without seccomp filters" if os.waitpid(pid, 0)[1] != 0 else None


def _lines(descriptor: int) -> Iterator[dict[str, Any]]:
    """Yield what the trainer sends, until it closes the connection."""
    received = bytearray()
    while chunk := os.read(descriptor, _CHUNK):
        received += chunk
        while (end := received.find(b"\n")) >= 0:
            line = bytes(received[:end])
            del received[: end + 1]
            yield json.loads(line)


def _reply(answer: Mapping[str, Any]) -> None:
    line = json.dumps(answer).encode() + b"\n"
    while line:
        line = line[os.write(1, line) :]
