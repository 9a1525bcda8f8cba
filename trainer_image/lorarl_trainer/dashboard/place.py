"""A folder or a store whose runs are followed while somebody looks at them."""

from __future__ import annotations

import hashlib
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from lorarl_trainer.dashboard.found import NAMES, FoundRun, find_runs
from lorarl_trainer.dashboard.index import Index, index_path, load_index, save_index
from lorarl_trainer.dashboard.row import Row, read_row
from lorarl_trainer.errors import LorarlError, StorageError
from lorarl_trainer.record.publisher import EVERY_SECONDS
from lorarl_trainer.storage import LocalStore, Store
from lorarl_trainer.threads import in_parallel

FOLDER_SECONDS = 2.0
"""How often a folder is looked at. A store is listed as often as a record in it changes."""
AGAIN_SECONDS = 10.0
"""How soon a place is looked at again if that failed."""
MOST_LOOKING = 0.2
"""The share of the time that is spent on looking: many runs are looked at less often."""
READERS = 16
AWAY = 2 * READERS
"""After so many runs in a row that could not be read, a store is taken for away."""
KEPT_EVERY = 2000
"""Runs that are read before the index is kept, so that a first look that is ended need not begin again."""


class Place:
    """The runs of one folder or store. `rows` is of the newest look, also while the next one is under way."""

    def __init__(self, name: str, store: Store, cache: Path) -> None:
        """Take the rows that the index has. Nothing is asked yet.

        `name`: as the user wrote it. `cache`: the folder of the indices.
        """
        self.name, self.store = name, store
        self.local = isinstance(store, LocalStore)
        self._index_path = index_path(cache, store.uri)
        index = load_index(self._index_path, store.uri)
        self.listed_at = index.listed_at
        self._rows, self._versions = dict(index.rows), dict(index.versions)
        self._ids: dict[str, str] = {}
        self._by_id: dict[str, str] = {}
        self._lock, self._asked = threading.Lock(), threading.Event()
        self._seen = self._read = self._to_read = 0
        self._looking = False
        self.problem = ""
        """Why the newest look failed, or what it could not read; empty if all went well."""

    def rows(self) -> list[Row]:
        """Return the runs. The place is looked at again soon."""
        self._asked.set()
        with self._lock:
            return list(self._rows.values())

    def id_of(self, path: str) -> str:
        """Return the id of the run with this path, which addresses of pages have."""
        if (known := self._ids.get(path)) is None:
            known = hashlib.sha256(f"{self.store.uri}\n{path}".encode()).hexdigest()[:16]
            self._by_id[known], self._ids[path] = path, known
        return known

    def row_of(self, run_id: str) -> Row | None:
        """Return the run with this id; None if there is none. The place is looked at again soon."""
        self._asked.set()
        with self._lock:
            if run_id not in self._by_id:
                for path in self._rows.keys() - self._ids.keys():
                    self.id_of(path)
            return self._rows.get(self._by_id[run_id]) if run_id in self._by_id else None

    def doing(self) -> str:
        """Return how far a look is that takes long; empty if there is nothing to wait for."""
        if not self._looking:
            return ""
        if self._to_read:
            return f"{self._read:,} of {self._to_read:,} changed runs read"
        return "" if self.listed_at else f"listing: {self._seen:,} files so far"

    def follow(self) -> None:
        """Look again and again, but ask a store nothing while no page is open. Does not return."""
        while True:
            self._asked.clear()
            began = time.monotonic()
            self.look()
            usual = FOLDER_SECONDS if self.local else AGAIN_SECONDS if self.problem else EVERY_SECONDS
            time.sleep(max(usual, (time.monotonic() - began) / MOST_LOOKING))
            self._asked.wait()

    def look(self) -> None:
        """List the place, read what has changed, and keep it for the next start."""
        self._looking, self._seen = True, 0
        try:
            self._look()
        except LorarlError as error:
            self.problem = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the page says so, and the next look follows
            traceback.print_exc()
            self.problem = f"a fault of lorarl: {type(error).__name__}: {error}"
        finally:
            self._looking, self._to_read = False, 0

    def _look(self) -> None:
        if isinstance(self.store, LocalStore) and not self.store.root.is_dir():
            raise StorageError("There is no such folder any more, or not yet: `lorarl run` makes the folder `out`.")
        now = time.time()
        found = {run.path: run for run in find_runs(self.store.entries_named(NAMES, self._count))}
        gone = self._rows.keys() - found.keys()
        with self._lock:
            for path in gone:
                self._rows.pop(path)
                self._versions.pop(path, None)
        changed = [run for run in found.values() if self._versions.get(run.path) != run.version]
        changed.sort(key=lambda run: -max(entry.changed for entry in run.newest.files.values()))
        first = not self.listed_at
        failed = self._read_all(changed)
        self.listed_at = now
        if gone or changed or first:
            self._keep()
        count = f"{len(failed)} run{'s' if len(failed) > 1 else ''}"
        self.problem = f"{count} could not be read, which is tried again. {failed[0]}" if failed else ""

    def _read_all(self, changed: Sequence[FoundRun]) -> list[str]:
        """Read the runs, the newest first; return what was said of those that could not be read."""
        self._read, self._to_read = 0, len(changed)
        failed: list[str] = []
        in_a_row = 0

        def read(run: FoundRun) -> None:
            nonlocal in_a_row
            if in_a_row >= AWAY and not self.local:
                return  # the next look reads it
            try:
                row = read_row(self.store, run, Path(self.name).name)
            except StorageError as error:
                failed.append(str(error))
                in_a_row += 1
                return
            with self._lock:
                in_a_row = 0
                self._read += 1
                if row is None:  # deleted since it was listed
                    self._rows.pop(run.path, None)
                    self._versions.pop(run.path, None)
                else:
                    self._rows[run.path], self._versions[run.path] = row, run.version

        for at in range(0, len(changed), KEPT_EVERY):
            in_parallel(read, changed[at : at + KEPT_EVERY], READERS)
            if at + KEPT_EVERY < len(changed):
                self._keep()
        return failed

    def _keep(self) -> None:
        with self._lock:
            index = Index(self.listed_at, dict(self._rows), dict(self._versions))
        save_index(self._index_path, self.store.uri, index)

    def _count(self, number: int) -> None:
        self._seen += number
