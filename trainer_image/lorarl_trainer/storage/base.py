"""The interface of all stores."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Buffer, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from lorarl_trainer.errors import StorageError

UPLOADS = 4
"""Parallel uploads of one large file or of a checkpoint's files.

They share a slow line; time limits allow for it.
"""
WRITE_CHECK = ".write-check-"
"""How the folder of the object begins that checks whether a store can be written."""
Data = bytes | memoryview
"""Content of an object. A memoryview must have single bytes as its items."""


def same_bytes(one: Buffer, other: Buffer) -> bool:
    """Compare contents by digests, which are made without the interpreter's lock.

    Comparing a memoryview holds it, at 1 GB/s, and generation in another thread would stand still.
    """
    first, second = (hashlib.sha256(content).digest() for content in (one, other))
    return first == second


@dataclass(frozen=True)
class Entry:
    """An object in a listing.

    Attributes:
        path: relative to the store.
        size: in bytes.
        version: changes with its content.
        changed: when it was last written, in seconds since 1970.
    """

    path: str
    size: int
    version: str
    changed: float


@dataclass(frozen=True)
class Tag:
    """The version of an object that was read. Opaque: its only use is as an argument of `replace_if`."""

    e_tag: str | None
    version: str | None = None


class Store(ABC):
    """A folder of objects. Paths are relative to it and use `/`.

    Objects appear whole or not at all. Every method raises `StorageError` once retries have failed. The error names the
    URI, the operation, the store's answer and the fix.
    """

    uri: str
    """The store's own URI, without secrets."""

    def uri_of(self, path: str) -> str:
        """Return the URI of the object or folder at `path`, without secrets."""
        return f"{self.uri.rstrip('/')}/{path}" if path else self.uri

    def get(self, path: str) -> bytes | None:
        """Return the object's bytes; None if there is no object."""
        found = self.get_tagged(path)
        return None if found is None else found[0]

    def get_large(self, path: str) -> Data | None:
        """Return the bytes of an object that may be large, as `get` does, without delaying other threads."""
        return self.get(path)

    @abstractmethod
    def get_tagged(self, path: str) -> tuple[bytes, Tag] | None:
        """Return the object's bytes and their version; None if there is no object."""

    @abstractmethod
    def put(self, path: str, data: Data) -> None:
        """Write the object, replacing an existing one."""

    @abstractmethod
    def put_if_absent(self, path: str, data: Data) -> bool:
        """Write the object unless one exists, atomically.

        Returns:
            True if the object now holds `data`, from this call or from an earlier one: after a broken connection the
            two cannot be distinguished. False if it holds something else, which was not changed.
        """

    @abstractmethod
    def replace_if(self, path: str, data: bytes, tag: Tag | None) -> Tag | None:
        """Compare and swap: write `data` if the object still has the version `tag` (None: if there is no object).

        `data` must differ from everything written to `path` before (by an epoch, a time or a random id), so that a lost
        answer can be distinguished from a lost race.

        Returns:
            The new version, or None if another writer was faster and nothing was written.
        """

    @abstractmethod
    def entries(self, prefix: str = "") -> list[Entry]:
        """Return everything under the folder `prefix`, at any depth, sorted by path."""

    @abstractmethod
    def entries_named(self, names: Collection[str], seen: Callable[[int], None] = lambda _: None) -> list[Entry]:
        """Return everything in the store whose name, the last part of its path, is one of these, in any order.

        Folders below the store's own that this user may not read are left out. `seen` is called with the number of
        objects that were looked at since the last call.
        """

    @abstractmethod
    def end_of(self, entry: Entry, most_bytes: int) -> bytes | None:
        """Return the end of an object: all of it if it is not longer than that; None if it is gone.

        `entry`: as it was listed. Of an object that has become longer since, the end is that of then.
        """

    @abstractmethod
    def folders(self, prefix: str = "") -> list[str]:
        """Return the names of the folders directly in the folder `prefix`, sorted."""

    @abstractmethod
    def delete(self, paths: Sequence[str]) -> None:
        """Delete these objects. They need not exist.

        Nothing deletes a whole folder: it may hold objects that lorarl did not write.
        """

    @abstractmethod
    def find(self, path: str) -> Entry | None:
        """Return the object at `path`; None if there is none."""

    @abstractmethod
    def upload_file(self, source: Path, path: str) -> None:
        """Copy the file `source` to the object at `path`, replacing an existing one. It may be larger than memory.

        Raises:
            OSError: the file cannot be read.
        """

    @abstractmethod
    def download_file(self, path: str, target: Path, arrived: Callable[[int], None] = lambda _: None) -> None:
        """Copy the object to the file `target` and create its folder if necessary.

        The file appears whole or not at all. `arrived` is called with the size of each part that has arrived, from any
        thread.
        """

    def require_writable(self, prefix: str) -> None:
        """Check that objects can be written under the folder `prefix`: write a small one, and delete it again."""
        path = f"{prefix}/{WRITE_CHECK}{secrets.token_hex(4)}/empty"
        self.put(path, b"")
        with contextlib.suppress(StorageError):  # where deleting is not allowed, a run says so itself
            self.delete([path])

    def download(self, prefix: str, target: Path) -> list[Path]:
        """Copy everything under the folder `prefix` into the folder `target`.

        Returns:
            The files, sorted; none if there is nothing under `prefix`.
        """
        copies = [(entry.path, target / Path(entry.path).relative_to(prefix)) for entry in self.entries(prefix)]
        for path, copy in copies:
            self.download_file(path, copy)
        return sorted(copy for _, copy in copies)
