"""The files of an adapter version on their way to a server on another machine."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lorarl_trainer.threads import in_background


@dataclass(frozen=True)
class AdapterFiles:
    """The files of one version by their names, and the SHA-256 of each where it was written."""

    content: Mapping[str, bytes]
    digests: Mapping[str, str]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read all files of a version's folder."""
        content = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
        return cls(content, {name: hashlib.sha256(data).hexdigest() for name, data in content.items()})

    def write(self, folder: Path) -> None:
        """Write them to a folder, unless they are there.

        Raises:
            OSError: the disk does not take them, or does not give them back as they were.
        """
        if not self._are_in(folder):
            under_way = folder.with_name(f".{folder.name}")
            for leftover in (under_way, folder):
                shutil.rmtree(leftover, ignore_errors=True)
            under_way.mkdir(parents=True)
            for name, data in self.content.items():
                (under_way / name).write_bytes(data)
            if not self._are_in(under_way):
                raise OSError(f"the adapter's files in {under_way} are not what the trainer wrote")
            under_way.rename(folder)

    def _are_in(self, folder: Path) -> bool:
        return folder.is_dir() and AdapterFiles.read(folder).digests == self.digests


class DeliveredVersions:
    """The versions in a folder of a server's machine.

    A delivery that is given up runs on in its thread. It may neither write beside the next one, nor remove what that
    one has brought.
    """

    def __init__(self, folder: Path) -> None:
        """Each version gets its own folder in this one."""
        self._folder = folder
        self._writing = threading.Lock()
        self._begun = 0

    async def deliver(self, name: str, files: AdapterFiles, kept: Collection[str]) -> Path:
        """Write a version, and remove all others except for the names in `kept`; return the version's folder.

        Raises:
            OSError: see `AdapterFiles.write`.
        """
        self._begun += 1
        return await in_background(self._deliver, self._begun, self._folder / name, files, kept)

    def _deliver(self, number: int, folder: Path, files: AdapterFiles, kept: Collection[str]) -> Path:
        with self._writing:
            files.write(folder)
            if number == self._begun:
                for other in self._folder.iterdir():
                    if other != folder and other.name not in kept:
                        shutil.rmtree(other)
        return folder
