"""`lorarl upload`: copies a base model or data to a store that a cluster's pods can read."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from lorarl_trainer.errors import InputError
from lorarl_trainer.storage import open_store
from lorarl_trainer.storage.secrets import read_secret


def upload(sources: Sequence[Path], uri: str, secret: str | None) -> Iterator[str]:
    """Copy files and folders into the folder `uri`, each under its own name.

    Yield the URI of each file once it is copied.

    Args:
        sources: files, and folders to copy with everything in them.
        uri: s3://, gs://, az:// or file:.
        secret: name of a Secret with the store's keys, as for `credentialsSecret` in a manifest. None: use the
            environment's.

    Raises:
        InputError: a source is missing, unreadable or empty; two would become one object; or the URI or the Secret
            cannot be used. An unreadable file is reported when its turn comes, everything else before anything is
            copied.
        StorageError: the store refuses, or cannot be reached.
    """
    store = open_store(uri, read_secret(secret, "--secret") if secret else {}, field="URI")
    copies: dict[str, Path] = {}
    for source in sources:
        # A link is copied under its own name, and `.` under its folder's.
        named = source.resolve() if source.name in ("", "..") else source.absolute()
        files = _files(named)
        if not files:
            raise InputError(
                "SOURCE", f"{source}, a folder without files", "a file, or a folder with files", "Check the path."
            )
        for file in files:
            path = file.relative_to(named.parent).as_posix()
            if path in copies:
                hint = "Upload them to different URIs, or rename one."
                raise InputError(
                    "SOURCE", f"{copies[path]} and {file}, which would both become {path}", "different names", hint
                )
            copies[path] = file
    for path, file in copies.items():
        try:
            store.upload_file(file, path)
        except OSError as error:
            raise _unreadable(file, error) from error
        yield store.uri_of(path)


def _files(source: Path) -> list[Path]:
    """Return the files of a folder, sorted, including those behind links; or the file itself.

    Raises:
        InputError: it is missing, or a part of it cannot be read.
    """
    try:
        if not stat.S_ISDIR(source.stat().st_mode):
            return [source]
        found = []
        for folder, _, names in source.walk(on_error=_raise, follow_symlinks=True):
            if folder.resolve() in [parent.resolve() for parent in folder.parents]:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))
            found += [folder / name for name in names]
    except OSError as error:
        raise _unreadable(Path(error.filename or source), error) from error
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def _unreadable(file: Path, error: OSError) -> InputError:
    return InputError(
        "SOURCE",
        f"{file}, which cannot be read ({error.strerror})",
        "readable files",
        "Check the path and its permissions, or leave it out.",
    )
