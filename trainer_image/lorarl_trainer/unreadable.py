"""A file of the user's that the operating system does not give: bad input, which no retry mends."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from lorarl_trainer.errors import InputError


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
        _mend(error, place),
    )


def _mend(error: OSError, place: Path) -> str:
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return f"Where it lies, run chmod -R a+rX {place}, and let everybody enter the folders above (chmod a+x)."
        case errno.ENOENT | errno.ELOOP:
            return "Copy it anew with what its links point to, as with cp -rL."
        case errno.EISDIR | errno.ENOTDIR:
            return "Copy it anew."
        case _:
            return "Look after the disk or volume that it lies on, or copy it elsewhere."
