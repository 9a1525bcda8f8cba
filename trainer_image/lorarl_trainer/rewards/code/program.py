"""The process of one test: it takes its last rights away, and runs the completion's program."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from math import ceil
from typing import Any, Literal, NoReturn

from lorarl_trainer.rewards.code.confinement import end_with_parent, limit_resources
from lorarl_trainer.rewards.code.system_calls import install

End = Literal["ended", "failed", "exception", "timeout", "memory", "output", "forbidden"]
"""How a test ended: by itself, by an assertion, by another exception, or because of a limit."""

_SAID, _PROOF = 3, 4  # descriptors of the process
_ABOVE = 16
_MOST_MESSAGE = 300


def digest_of(output: str) -> str:
    """Return a digest of what a program prints. White space at the ends of lines and of the text does not count."""
    lines = [line.rstrip() for line in output.strip().splitlines()]
    return hashlib.sha256("\n".join(lines).encode(errors="replace")).hexdigest()


def run_program(job: Mapping[str, Any], memory: int, pipes: tuple[int, int, int, int], parent: int) -> NoReturn:
    """Run the program of a job in this process, a new one, and end it.

    `pipes`: its ends of them: its input, its output, what it says of its end, and the proof. `parent`: number of the
    process that made this one, and without which it ends.
    """
    try:
        above = [fcntl.fcntl(pipe, fcntl.F_DUPFD, _ABOVE) for pipe in pipes]
        for descriptor, target in zip(above, (0, 1, _SAID, _PROOF), strict=True):
            os.dup2(descriptor, target)
        os.closerange(_PROOF + 1, os.sysconf("SC_OPEN_MAX"))
        end_with_parent(parent)
        limit_resources(memory, ceil(job["seconds"]))
        sys.stdin = os.fdopen(0, encoding="utf-8", errors="replace", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="replace", closefd=False)
        install(os.getpid())
    except BaseException:  # noqa: BLE001  nothing may continue without the limits
        os._exit(70)
    with contextlib.suppress(BaseException):
        end, message, known = _outcome(job["code"], job["test"])
        os.write(_SAID, json.dumps({"end": end, "message": message[:_MOST_MESSAGE], "proof": known}).encode())
        os._exit(0)
    os._exit(71)


def _outcome(code: str, test: str | None) -> tuple[End, str, str | None]:
    """Run the program, and then its assertions if it has some. Returns its end, in detail, and the proof."""
    output = sys.stdout
    names: dict[str, Any] = {"__name__": "__main__" if test is None else "completion"}
    try:
        try:
            exec(compile(code, "<completion>", "exec"), names)
        except SystemExit as left:
            if test is not None or left.code not in (None, 0):
                raise
        known = os.read(_PROOF, 64).decode() if test is not None else None
        if test is not None:
            try:
                exec(compile(test, "<test>", "exec"), names)
            except AssertionError as error:
                return "failed", _described(error), None
        output.flush()
    except MemoryError:
        return "memory", "asked for more memory than it may have", None
    except BaseException as error:  # noqa: BLE001  a program may raise anything
        return "exception", _described(error), None
    return "ended", "", known


def _described(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
