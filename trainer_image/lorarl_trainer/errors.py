"""The errors that a user sees. Each names what is wrong, what was got, what was expected, and what to do."""

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
    """An expected failure. It is shown as one message without a traceback; the exit code is 1."""

    reason = "Failed"
    """The kind of failure in one CamelCase word, for programs: `status.failure.reason` of the job."""


class InputError(LorarlError):
    """The manifest, or something that it names, cannot be used."""

    reason = "InvalidInput"

    def __init__(self, field: str, got: str, expected: str, hint: str) -> None:
        """Name the manifest's `field` (`spec.data.train.uri`), what it is, what it should be, and how to fix it."""
        self.field, self.got, self.expected, self.hint = field, got, expected, hint
        super().__init__(f"{field}: got {got}, expected {expected}. {hint}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str, str]]:
        """Keep all four attributes when the error is pickled."""
        return type(self), (self.field, self.got, self.expected, self.hint)


class StorageError(LorarlError):
    """Object storage refused a request, or could not be reached before the retries ran out."""

    reason = "StorageFailed"


class RewardServerError(LorarlError):
    """A server that scores completions gave too few scores before the retries ran out. It may be back later."""

    reason = "RewardServerFailed"


class RolloutServerError(LorarlError):
    """No server, and no separate engine, is left that generates with the newest adapter. One may be back later."""

    reason = "RolloutServerFailed"


class EnginesLostError(LorarlError):
    """The machines or pods of all separate engines are gone, and none has come back. The job itself is not at fault."""

    reason = "NodeLost"


class EnvironmentsLostError(LorarlError):
    """The pods of `cluster.environments` are gone, and none has come back. The job itself is not at fault."""

    reason = "NodeLost"


class FencedError(LorarlError):
    """A newer start of the same job has taken over the checkpoint prefix."""

    reason = "Fenced"


class PolicyDriftError(LorarlError):
    """vLLM and the trainer disagree on the log-probabilities of the same tokens by more than the tolerance."""

    reason = "PolicyDrift"


class GradientError(LorarlError):
    """Loss or gradient is not finite, several updates in a row."""

    reason = "GradientNotFinite"


class WorkerError(LorarlError):
    """A worker process failed or ended: a device error or a bug, for example."""

    reason = "WorkerFailed"


class NodeLostError(WorkerError):
    """A worker's machine or pod is gone. The job itself is not at fault."""

    reason = "NodeLost"


class OutOfMemoryError(WorkerError):
    """A worker's pod, machine or GPU ran out of memory."""

    reason = "OutOfMemory"


class StaleAdapterError(LorarlError):
    """vLLM generated with an adapter version that it should not have, in most jobs any but the newest."""

    reason = "StaleAdapter"


def in_one_line(error: BaseException) -> str:
    """Return an exception's type and message as one line."""
    return _shortened(f"{type(error).__name__}: {error}")


def last_exception(traceback: str) -> str:
    """Return the exception at the end of a traceback as one line: the text after the last frame's source lines."""
    _, frame, rest = f"\n{traceback}".rpartition('\n  File "')
    after = (
        dropwhile(lambda line: line.startswith("    "), rest.splitlines()[1:]) if frame else traceback.splitlines()[-1:]
    )
    return _shortened("\n".join(after))


def without_colours(text: str) -> str:
    """Remove the escape codes that colour text in terminals."""
    return _COLOURS.sub("", text)


def _shortened(text: str) -> str:
    line = " ".join(without_colours(text).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def unreadable(field: str, uri: str, path: Path, error: OSError) -> LorarlError:
    """Explain to a user why a file cannot be read.

    A broken disk or volume is no fault of the manifest, so that is a `StorageError`.

    `path`: the file or folder behind it on this machine.
    """
    file = error.filename or path
    got = f"{uri}, but {file} cannot be read on {socket.gethostname()} ({error.strerror or error})"
    if (hint := _hint(error, path)) is None:
        return StorageError(f"{field}: got {got}. Check the disk or volume that stores it, or copy it elsewhere.")
    return InputError(field, got, f"files that user {os.geteuid()} can read", hint)


def _hint(error: OSError, path: Path) -> str | None:
    """Return how to make a file readable; None if the file is not to blame."""
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return (
                f"On the machine that stores it, run chmod -R a+rX {path}, and make the folders above it "
                "accessible to all users (chmod a+x)."
            )
        case errno.ENOENT | errno.ELOOP:
            return "Copy it again together with the targets of its links, for example with cp -rL."
        case errno.EISDIR | errno.ENOTDIR:
            return "Copy it again."
        case _:
            return None
