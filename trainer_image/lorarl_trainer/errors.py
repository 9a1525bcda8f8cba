"""The errors a user meets. Each names what was wrong, what was got, what was expected and what to do."""

from __future__ import annotations

import errno
import os
import re
import socket
from itertools import dropwhile
from pathlib import Path

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST = 500


class LorarlError(Exception):
    """An expected failure: shown as one message without a traceback, exit code 1."""

    reason = "Failed"
    """The kind of failure in one CamelCase word, for programs: `status.failure.reason` of the job."""


class InputError(LorarlError):
    """Something in the manifest, or something it names, cannot be used."""

    reason = "InvalidInput"

    def __init__(self, field: str, got: str, expected: str, hint: str) -> None:
        """Name the manifest's `field` (as `spec.data.train.uri`), what it was, what it should be, and the mend."""
        self.field, self.got, self.expected, self.hint = field, got, expected, hint
        super().__init__(f"{field}: got {got}, expected {expected}. {hint}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str, str]]:
        """Travel between processes whole."""
        return type(self), (self.field, self.got, self.expected, self.hint)


class StorageError(LorarlError):
    """Object storage refused, or could not be reached within the time for retries."""

    reason = "StorageFailed"


class FencedError(LorarlError):
    """A newer start of the same job has taken over the checkpoint prefix."""

    reason = "Fenced"


class PolicyDriftError(LorarlError):
    """vLLM's and the trainer's log-probabilities of the same tokens differ by more than the tolerance."""

    reason = "PolicyDrift"


class GradientError(LorarlError):
    """The gradient is no finite number."""

    reason = "GradientNotFinite"


class WorkerError(LorarlError):
    """A worker process failed or ended: out of memory, a device error, a defect."""

    reason = "WorkerFailed"


class NodeLostError(WorkerError):
    """The machine, or the pod, of a worker is gone: no fault of the job's."""

    reason = "NodeLost"


class OutOfMemoryError(WorkerError):
    """The memory of a worker's pod, machine or GPU has run out."""

    reason = "OutOfMemory"


class StaleAdapterError(LorarlError):
    """vLLM answered with another adapter version than the newest."""

    reason = "StaleAdapter"


def in_one_line(error: BaseException) -> str:
    """Say all of an exception, its type and its message, in one line."""
    return _shortened(f"{type(error).__name__}: {error}")


def last_of(traceback: str) -> str:
    """Say the exception that a traceback ends with in one line: what follows the source lines of the last frame."""
    _, frame, rest = f"\n{traceback}".rpartition('\n  File "')
    after = (
        dropwhile(lambda line: line.startswith("    "), rest.splitlines()[1:]) if frame else traceback.splitlines()[-1:]
    )
    return _shortened("\n".join(after))


def without_colours(text: str) -> str:
    """Leave out the codes by which terminals show colours."""
    return _COLOURS.sub("", text)


def _shortened(text: str) -> str:
    line = " ".join(without_colours(text).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def unreadable(field: str, uri: str, place: Path, error: OSError) -> InputError:
    """Say in a user's words why a file cannot be read.

    Args:
        field: the URI's path in the manifest.
        uri: what was to be read.
        place: the file or folder behind it on this machine.
        error: what the operating system said.
    """
    file = error.filename or place
    return InputError(
        field,
        f"{uri}, where {file} cannot be read on {socket.gethostname()} ({error.strerror or error})",
        f"files that user {os.geteuid()} can read",
        _hint(error, place),
    )


def _hint(error: OSError, place: Path) -> str:
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return f"Where it lies, run chmod -R a+rX {place}, and let everybody enter the folders above (chmod a+x)."
        case errno.ENOENT | errno.ELOOP:
            return "Copy it anew with what its links point to, as with cp -rL."
        case errno.EISDIR | errno.ENOTDIR:
            return "Copy it anew."
        case _:
            return "Look after the disk or volume that it lies on, or copy it elsewhere."
