"""What a store can do, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

UPLOADS = 4
"""How many may be under way at once, of one large file or of a checkpoint's files: they share a slow line, and time limits allow for it."""
Data = bytes | memoryview
"""What an object is to hold; a view is of single bytes."""


@dataclass(frozen=True)
class Entry:
    """One object of a listing: its path relative to the store, its size in bytes, and a text that changes with its content."""

    path: str
    size: int
    version: str


@dataclass(frozen=True)
class Tag:
    """Which version of an object was read. Opaque: only for giving back to `replace_if`."""

    e_tag: str | None
    version: str | None = None


class Store(ABC):
    """A folder of objects. Paths are relative to it, with `/` between their parts.

    Objects appear whole or not at all. Every method raises `StorageError`, which names the URI, the operation, the store's answer and the
    mend, once retries could not help.
    """

    uri: str
    """The store's own URI, fit to be shown."""

    def uri_of(self, path: str) -> str:
        """The URI of the object or folder at `path`, fit to be shown."""
        return f"{self.uri.rstrip('/')}/{path}" if path else self.uri

    def get(self, path: str) -> bytes | None:
        """The object's bytes, or None where there is none."""
        found = self.get_tagged(path)
        return None if found is None else found[0]

    @abstractmethod
    def get_tagged(self, path: str) -> tuple[bytes, Tag] | None:
        """The object's bytes and which version they are, or None where there is none."""

    @abstractmethod
    def put(self, path: str, data: Data) -> None:
        """Write the object, over an older one if there is one."""

    @abstractmethod
    def put_if_absent(self, path: str, data: Data) -> bool:
        """Write the object unless one is there, atomically.

        Returns:
            True when the object now holds `data`, be it from this call or from before: after a broken connection nobody could tell
            those two apart. False when it holds something else, which was left alone.
        """

    @abstractmethod
    def replace_if(self, path: str, data: bytes, tag: Tag | None) -> Tag | None:
        """Compare and swap: write `data` if the object is still the version `tag` (None: if there is no object).

        `data` must differ from everything written to `path` before (hold an epoch, a time, a random id), so that a lost answer can be
        told from a lost race.

        Returns:
            The new version, or None when somebody else was faster and nothing was written.
        """

    @abstractmethod
    def entries(self, prefix: str = "") -> list[Entry]:
        """Everything under the folder `prefix`, at any depth, sorted by path."""

    @abstractmethod
    def folders(self, prefix: str = "") -> list[str]:
        """The names of the folders directly in the folder `prefix`, sorted."""

    @abstractmethod
    def delete_folder(self, prefix: str) -> None:
        """Delete everything under the folder `prefix`; nothing to do when there is nothing."""

    @abstractmethod
    def find(self, path: str) -> Entry | None:
        """The object at `path`, or None where there is none."""

    @abstractmethod
    def upload_file(self, source: Path, path: str) -> None:
        """Copy the file `source` to the object at `path`, over an older one if there is one. It may be larger than memory.

        Raises:
            OSError: the file cannot be read.
        """

    @abstractmethod
    def download_file(self, path: str, target: Path) -> None:
        """Copy the object to the file `target`, whose folder is made if need be. Once there, the file is whole."""

    def download(self, prefix: str, target: Path) -> list[Path]:
        """Copy everything under the folder `prefix` into the folder `target`.

        Returns:
            The files, sorted; none where there is nothing under `prefix`.
        """
        copies = [(entry.path, target / Path(entry.path).relative_to(prefix)) for entry in self.entries(prefix)]
        for path, copy in copies:
            self.download_file(path, copy)
        return sorted(copy for _, copy in copies)
