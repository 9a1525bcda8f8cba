"""The adapters that a server has: which join, which leave, and what the run's own name means meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lorarl_trainer.errors import StorageError
from lorarl_trainer.storage import Store
from lorarl_trainer.trained_adapters.serving.check import NotServedError
from lorarl_trainer.trained_adapters.serving.names import write_names
from lorarl_trainer.trained_adapters.serving.versions import (
    Choice,
    NotWholeError,
    Version,
    Wanted,
    fetch,
    read_latest,
    wanted,
)

COPIES = "adapters"
"""The folder of copies in that of a service."""

type Join = Callable[[Version, str], str]
"""Loads a version under a name and checks it; returns what the check says, or raises NotServedError."""
type Leave = Callable[[str], None]
"""Unloads what has this name."""
type Say = Callable[[str, str], None]
"""Takes a word, and a line about it."""


@dataclass(frozen=True)
class Served:
    """A version that requests may use.

    Attributes:
        public: the name of this version alone; that of the run if its step is not known.
        loaded: the name by which the server has it.
    """

    version: Version
    public: str
    loaded: str

    @classmethod
    def of(cls, name: str, version: Version) -> Served:
        """Name a version of a run. No two adapters are ever loaded under one name."""
        public = name if version.step is None else f"{name}-step-{version.step}"
        return cls(version, public, f"{public}@{version.key}")


class Lineup:
    """Keeps a server's adapters as a job's folder has them."""

    def __init__(self, name: str, folder: Path, join: Join, leave: Leave, say: Say) -> None:
        """Serve nothing yet.

        Args:
            name: what requests call the newest version, or the best.
            folder: gets copies of adapters, and the file with the names.
            join: loads and checks.
            leave: unloads.
            say: takes what the user should know.
        """
        self._name, self._folder = name, folder
        self._join, self._leave, self._say = join, leave, say
        self._served: dict[str, Served] = {}
        self._refused: dict[str, str] = {}
        self._leaving: list[Served] = []
        self._left: list[Served] = []
        self._main: str | None = None
        write_names(names_file(folder), {})

    @property
    def versions(self) -> list[str]:
        """The names of the versions that are served."""
        return [one.public for one in self._served.values()]

    @property
    def main(self) -> str | None:
        """The name of the version that the run's name means; None while it means none."""
        return None if self._main is None else self._served[self._main].public

    @property
    def reasons(self) -> str:
        """Why adapters are not served."""
        return "; ".join(self._refused.values()) or "There is no whole checkpoint."

    def serve(self, version: Version) -> None:
        """Serve one adapter under the run's name."""
        if self._add("", version):
            self._point("")

    def follow(self, home: Store, choice: Choice, most: int) -> None:
        """Bring the server to what a job's folder has now. What cannot be served is said once.

        Raises:
            InputError: there is no such checkpoint.
        """
        self._unload()
        try:
            latest = read_latest(home)
            asked = wanted(latest, choice, most) if latest else None
            if asked:
                self._bring(home, asked)
            self._refused.pop("", None)
        except StorageError as error:
            self._refuse("", f"the checkpoints cannot be read, so what is served stays: {error}")

    def _bring(self, home: Store, asked: Wanted) -> None:
        for folder in asked.folders:
            if folder not in self._served and folder not in self._refused:
                self._fetch(home, folder)
            if folder == asked.main and folder in self._served:
                self._point(folder)
        for folder in [one for one in self._served if one not in asked.folders and one != self._main]:
            self._leaving.append(self._served.pop(folder))
        self._write()

    def _fetch(self, home: Store, folder: str) -> None:
        try:
            version = fetch(home, folder, self._folder / COPIES)
        except NotWholeError as error:
            latest = read_latest(home)
            if latest is None or folder in latest.checkpoints:  # otherwise the run deleted it meanwhile
                self._refuse(folder, f"{folder} is not served: {error}")
            return
        self._add(folder, version)

    def _add(self, folder: str, version: Version) -> bool:
        """Load and check an adapter. Requests learn its name when it is found right."""
        one = Served.of(self._name, version)
        try:
            said = self._join(version, one.loaded)
        except NotServedError as error:
            self._refuse(folder, f"{one.public} is not served: {error}")
            return False
        self._say("checked", f"{one.public}: {said}")
        self._served[folder] = one
        self._write()
        return True

    def _point(self, folder: str) -> None:
        """Let the run's name mean this version from now on. Requests under way stay with the one before."""
        if folder != self._main:
            self._main = folder
            self._write()
            self._say("now", f"{self._name} is {self._served[folder].public}")

    def _unload(self) -> None:
        """Unload what left in the round before: by now no request is on its way to it.

        The server may read the files of requests that are under way again, so they stay for another while.
        """
        for one in self._leaving:
            self._leave(one.loaded)
            self._say("left", one.public)
        if self._leaving:
            for one in self._left:
                shutil.rmtree(one.version.folder, ignore_errors=True)
            self._left, self._leaving = self._leaving, []

    def _refuse(self, folder: str, reason: str) -> None:
        if folder not in self._refused:
            self._refused[folder] = reason
            self._say("refused", reason)

    def _write(self) -> None:
        means = {one.public: one.loaded for one in self._served.values()}
        if self._main is not None:
            means = {self._name: self._served[self._main].loaded} | means
        write_names(names_file(self._folder), means)


def names_file(folder: Path) -> Path:
    """Return the file of the names that requests may use, in the folder of a service."""
    return folder / "names.json"
