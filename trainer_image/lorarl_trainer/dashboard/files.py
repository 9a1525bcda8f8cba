"""The files of one run on this machine: its own folder, or a copy that follows its record in a store."""

from __future__ import annotations

import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from lorarl_trainer.progress.events_file import EVENTS
from lorarl_trainer.progress.metrics_file import METRICS, SUMMARY
from lorarl_trainer.progress.samples import SAMPLES
from lorarl_trainer.storage import LocalStore, Store
from lorarl_trainer.threads import in_parallel

CURVES = (SUMMARY, METRICS, EVENTS)
"""What a run's page needs at first. The samples, which may be large, follow."""
LOOK_SECONDS = 10.0
"""How often a run in a store is looked at while its page is open."""
MOST_COPIES = 64
"""Runs whose files are kept here at a time."""


class Copy:
    """The files of one run's folder in a store. Safe to use from several threads."""

    def __init__(self, store: Store, source: str, target: Path) -> None:
        """`source`: the run's folder in the store. `target`: for the copies; not used for a folder of this machine."""
        self._store, self._source = store, source
        local = store.root if isinstance(store, LocalStore) else None
        self.folder = target if local is None else local / source
        self._copied, self._local = target, local is not None
        self._lock = threading.Lock()
        self._looked_at, self._there = -LOOK_SECONDS, dict[str, str]()
        self._here: dict[str, str] = {}

    def bring(self, *, samples: bool) -> str:
        """Bring the newest files here; return a text that changes with them.

        Raises:
            StorageError: the store failed.
        """
        names = (*CURVES, SAMPLES) if samples else CURVES
        with self._lock:
            there = self._versions()
            if not self._local:
                self._fetch({name: there[name] for name in names if name in there})
        return " ".join(f"{name}:{there[name]}" for name in names if name in there)

    def forget(self) -> None:
        """Delete the copies."""
        shutil.rmtree(self._copied, ignore_errors=True)

    def _versions(self) -> Mapping[str, str]:
        """Return the versions of the files in the store, of some seconds ago if it is not a folder."""
        if self._local or time.monotonic() - self._looked_at >= LOOK_SECONDS:
            entries = in_parallel(lambda name: self._store.find(self._path(name)), (*CURVES, SAMPLES), len(CURVES) + 1)
            self._there = {
                name: f"{entry.version}-{entry.size}"
                for name, entry in zip((*CURVES, SAMPLES), entries, strict=True)
                if entry is not None
            }
            self._looked_at = time.monotonic()
        return self._there

    def _fetch(self, wanted: Mapping[str, str]) -> None:
        changed = [name for name, version in wanted.items() if self._here.get(name) != version]
        in_parallel(lambda name: self._store.download_file(self._path(name), self.folder / name), changed, len(CURVES))
        self._here.update({name: wanted[name] for name in changed})

    def _path(self, name: str) -> str:
        return f"{self._source}/{name}" if self._source else name


class Copies:
    """The newest copies, those of the runs that were looked at last."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for copies of files; which its maker empties."""
        self._folder, self._lock = folder, threading.Lock()
        self._copies: OrderedDict[tuple[str, str], Copy] = OrderedDict()
        self._made = 0

    def of(self, store: Store, source: str) -> Copy:
        """Return the copy of a run's folder. Nothing is brought yet."""
        key = store.uri, source
        with self._lock:
            if key not in self._copies:
                self._made += 1
                self._copies[key] = Copy(store, source, self._folder / str(self._made))
                if len(self._copies) > MOST_COPIES:
                    self._copies.popitem(last=False)[1].forget()
            self._copies.move_to_end(key)
            return self._copies[key]
