"""Finds the newest whole checkpoint of a job, in its store and in local folders of unpublished ones. Claims nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from lorarl_trainer.checkpoint.contents import CARD, MANIFEST, Checkpoint, Manifest, step_of
from lorarl_trainer.checkpoint.identity import Identity, differences
from lorarl_trainer.checkpoint.latest import NAME, Latest
from lorarl_trainer.storage import Data, LocalStore, Store, Tag


@dataclass(frozen=True)
class Found:
    """A whole checkpoint, and where it is stored."""

    checkpoint: Checkpoint
    manifest: Manifest
    uri: str
    folder: str | None
    """Its name in the job's folder; None if it comes from a local folder of unpublished checkpoints."""


class CheckpointReader:
    """Reads the checkpoints under `<store>/<job>/`."""

    def __init__(self, store: Store, job: str, identity: Identity) -> None:
        """`identity` says what training this is: a checkpoint kept for another store must have the same."""
        self._store, self._job, self._identity = store, job, identity
        self._uri = store.uri_of(job)
        self._read_ahead: Found | None = None

    def read_ahead(self, unpublished: Iterable[Path]) -> tuple[Found | None, list[str]]:
        """Find the newest checkpoint and keep it in memory, so that `survey` does not read its files again."""
        _, found, warnings = self.survey(unpublished)
        self._read_ahead = found
        return found, warnings

    def forget(self) -> None:
        """Release what `read_ahead` keeps."""
        self._read_ahead = None

    def survey(
        self, unpublished: Iterable[Path], *, files: Collection[str] | None = None
    ) -> tuple[Latest | None, Found | None, list[str]]:
        """Find the newest whole checkpoint.

        Args:
            unpublished: local folders of checkpoints that could not be published. One counts if it is newer than
                everything published and no later run has published since.
            files: the only ones to read and verify, beside checkpoint.json; None for all.

        Returns:
            latest.json, the checkpoint, and a warning for each checkpoint that was skipped.
        """
        latest, _, warnings = self.read_latest()
        found = self._newest_published(latest, warnings, files)
        for root in unpublished:
            local = LocalStore(root)
            for folder in _newest_first(local.folders()):
                newer = self._load(local, folder, None, warnings, files)
                if newer is not None and self._continues(newer, found, latest, warnings):
                    found = newer
                    break
        return latest, found, warnings

    def read_latest(self) -> tuple[Latest | None, Tag | None, list[str]]:
        """Return latest.json (None if missing or corrupt), its version, and a warning if it should have been there."""
        read = self._store.get_tagged(self._path(NAME))
        if read is None:
            orphans = _newest_first(self._store.folders(self._job))
            return (
                None,
                None,
                [f"{self._uri}/{NAME} is missing. Searched the folders instead."] if orphans else [],
            )
        data, tag = read
        try:
            return Latest.from_bytes(data), tag, []
        except ValueError as error:
            return None, tag, [f"{self._uri}/{NAME} is corrupt: {error}. Searched the folders instead."]

    def recover_latest(self) -> Latest:
        """Rebuild a lost latest.json from the folders.

        All other folders count as being deleted. Nothing is written under their names: another run may be writing
        there.
        """
        folders = _newest_first(self._store.folders(self._job))
        manifests = [(folder, self._manifest(self._store, self._path(folder), [])) for folder in reversed(folders)]
        epochs = [manifest.epoch for _, manifest in manifests if manifest is not None]
        unclaimed = Latest(max(epochs, default=0), "", "", "")
        _, found, _ = self.survey(())
        if found is None or found.folder is None:
            return unclaimed
        kept = tuple(
            folder for folder, manifest in manifests if manifest is not None and manifest.step < found.manifest.step
        )
        deleting = tuple(sorted(set(folders) - {*kept, found.folder}))
        return unclaimed.publishing(
            found.folder, found.manifest, found.manifest.created_at, (*kept, found.folder), deleting
        )

    def _newest_published(
        self, latest: Latest | None, warnings: list[str], files: Collection[str] | None
    ) -> Found | None:
        for folder in _newest_first(latest.checkpoints if latest else self._store.folders(self._job)):
            found = self._load(self._store, self._path(folder), folder, warnings, files)
            if found is not None:
                return found
        return None

    def _load(
        self, store: Store, prefix: str, folder: str | None, warnings: list[str], only: Collection[str] | None
    ) -> Found | None:
        """Return the checkpoint at `prefix` if it is whole; otherwise add a warning."""
        manifest = self._manifest(store, prefix, warnings)
        if manifest is None:
            return None
        if (known := self._read_ahead) is not None and (known.uri, known.manifest) == (store.uri_of(prefix), manifest):
            return known
        files: dict[str, Data] = {}
        for path in manifest.files if only is None else [path for path in manifest.files if path in only]:
            data = store.get_large(f"{prefix}/{path}")
            fault = manifest.fault(path, data)
            if fault is not None or data is None:
                warnings.append(f"Skipped {store.uri_of(prefix)}: {fault}.")
                return None
            files[path] = data
        # Only a checkpoint that is still to be published is written again, with its card.
        card = store.get(f"{prefix}/{CARD}") if folder is None and only is None else None
        checkpoint = Checkpoint(manifest.step, manifest.adapter_version, files, card)
        return Found(checkpoint, manifest, store.uri_of(prefix), folder)

    def _manifest(self, store: Store, prefix: str, warnings: list[str]) -> Manifest | None:
        data = store.get(f"{prefix}/{MANIFEST}")
        try:
            if data is not None:
                return Manifest.from_bytes(data)
            warnings.append(f"Skipped {store.uri_of(prefix)}: {MANIFEST} is missing, so it was never whole.")
        except ValueError as error:
            warnings.append(f"Skipped {store.uri_of(prefix)}: {MANIFEST} is corrupt: {error}.")
        return None

    def _continues(self, newer: Found, found: Found | None, latest: Latest | None, warnings: list[str]) -> bool:
        """Whether an unpublished checkpoint continues what is published."""
        manifest, published_epoch = newer.manifest, (latest.published_epoch if latest else None) or 0
        if manifest.job != self._job:
            warnings.append(f"Skipped {newer.uri}: it belongs to the job {manifest.job}.")
            return False
        elsewhere = manifest.kept_from not in (None, self._uri)
        if elsewhere and (found is not None or differences(manifest.identity, self._identity)):
            # Each store counts its own epochs, and a training that started from scratch here does not resume that one.
            warnings.append(f"Skipped {newer.uri}: it was kept for {manifest.kept_from}.")
            return False
        if not elsewhere and manifest.epoch < published_epoch:
            warnings.append(
                f"Skipped {newer.uri}: it is from epoch {manifest.epoch}, and epoch {published_epoch} has published "
                "since."
            )
            return False
        return found is None or manifest.step > found.manifest.step

    def _path(self, name: str) -> str:
        return f"{self._job}/{name}"


def _newest_first(folders: Iterable[str]) -> list[str]:
    return [
        name
        for _, name in sorted(((step_of(name), name) for name in folders if step_of(name) is not None), reverse=True)
    ]
