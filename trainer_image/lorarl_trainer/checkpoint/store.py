"""Publishing and resuming checkpoints of one job, with any number of runs on the same folder.

Why it is exact, whatever is paused, killed or repeated, and wherever:
- No object but latest.json is ever written over. Files are put only where there is none; where there is one with other bytes (a killed
  run's leftover) the checkpoint goes to a folder with a fresh name.
- latest.json changes by compare and swap only, so an older run's publication fails once a newer run has claimed.
- A run deletes only folders that its latest.json, written before, lists as `deleting`. No later run writes under those names, so a
  deletion that was held up finds nothing of theirs.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from lorarl_trainer.checkpoint.contents import ADAPTER, MANIFEST, Checkpoint, Manifest, folder_name, step_of
from lorarl_trainer.checkpoint.identity import Identity, require_same_training
from lorarl_trainer.checkpoint.latest import NAME, Latest, retention
from lorarl_trainer.checkpoint.reader import CheckpointReader, Found
from lorarl_trainer.errors import FencedError, StorageError
from lorarl_trainer.storage import UPLOADS, Store, Tag
from lorarl_trainer.threads import in_parallel

SWAP_ATTEMPTS = 20
NAME_ATTEMPTS = 3


@dataclass(frozen=True)
class Published:
    """A checkpoint that readers can see."""

    step: int
    uri: str
    adapter_uri: str
    adapter_sha256: str
    adapter_version: int
    epoch: int
    published_at: str
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Started:
    """How a run begins: its epoch, the checkpoint to go on from (None: from scratch), and what a person should be told."""

    epoch: int
    found: Found | None
    warnings: tuple[str, ...]


class CheckpointStore:
    """The checkpoints under `<store>/<job>/`, as one run sees them.

    Call `start` (or `claim`) once, then `publish`. Not for several threads at once.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        *,
        keep: int,
        identity: Identity,
        job_uid: str | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        """Name the job; `keep` newest checkpoints stay, `identity` says what training this is, `job_uid` whose in a cluster."""
        self.store, self.job, self.keep, self._job_uid = store, job, keep, job_uid
        self.identity: Identity = json.loads(json.dumps(dict(identity)))  # as it will be read back: lists, no tuples
        self.uri = store.uri_of(job)
        self._now = now or (lambda: datetime.now(UTC))
        self._writer = secrets.token_hex(8)
        self._host = f"{socket.gethostname()}, process {os.getpid()}"
        self._latest: Latest | None = None
        self._tag: Tag | None = None
        self._lineage: tuple[str, ...] = ()
        self._taken: set[str] = set()
        self._anew = False
        self._reader = CheckpointReader(store, job, self.identity)

    @property
    def epoch(self) -> int:
        """This run's epoch. Only after `start` or `claim`."""
        return self._claimed().epoch

    def start(self, resume: Literal["Auto", "Never"], unpublished: Iterable[Path] = ()) -> Started:
        """Take the next epoch and find what to go on from. Nothing is claimed from a running job when the manifest does not fit.

        Args:
            resume: Auto: from the newest whole checkpoint. Never: from scratch; older checkpoints go at the first publication.
            unpublished: Local folders where earlier runs may have left checkpoints that they could not publish.

        Raises:
            InputError: The checkpoint is of another training.
            StorageError: The store failed, or there are checkpoints but none is whole.
        """
        folders = tuple(unpublished)
        seen, found, warnings = self._reader.survey(folders) if resume == "Auto" else (None, None, [])
        self._require_same_training(found)
        warnings += self.claim()
        if resume == "Auto" and _published(seen) != _published(self._claimed()):
            # An older run published between our look and our claim. It cannot do so again.
            _, found, more = self._reader.survey(folders)
            self._require_same_training(found)
            warnings += more
        if found is None and resume == "Auto" and self._claimed().checkpoints:
            raise StorageError(
                f"{self.uri}: no checkpoint is whole. {' '.join(warnings)} Restore one from a copy, or train anew with "
                "spec.checkpoint.resume: Never (what is there is deleted once the new run publishes its first checkpoint)."
            )
        self._begin_from(found)
        self._reader.forget()
        return Started(self.epoch, found, tuple(dict.fromkeys(warnings)))

    def claim(self) -> list[str]:
        """Take the next epoch: every older run is fenced off from now on, and stops at its next publication.

        Returns:
            Warnings: latest.json was garbage, and what was used instead.
        """
        for _ in range(SWAP_ATTEMPTS):
            latest, tag, warnings = self._reader.read_latest()
            if latest is None:
                latest = self._reader.recover_latest()
            claimed = latest.claimed_by(latest.epoch + 1, self._writer, self._host, self.time(), self._job_uid)
            swapped = self.store.replace_if(self._path(NAME), claimed.to_bytes(), tag)
            if swapped is not None:
                self._latest, self._tag = claimed, swapped
                self._lineage, self._taken = claimed.checkpoints, set(claimed.deleting)
                return warnings
        raise StorageError(f"{self.uri}/{NAME}: {SWAP_ATTEMPTS} other starts of this job were faster. Start it once.")

    def publish(self, checkpoint: Checkpoint) -> Published:
        """Make `checkpoint` the newest, then delete those past `keep`.

        Raises:
            FencedError: A newer start of the job has taken over. Nothing of it was changed.
            StorageError: The store failed; readers still see the checkpoint before.
        """
        self._require_own_turn()
        manifest = Manifest.of(checkpoint, self.job, self.epoch, self.time(), self.identity)
        folder = self._write(checkpoint, manifest)
        there = [name for name in self.store.folders(self.job) if step_of(name) is not None]
        stay, gone = retention(self._lineage, folder, self.keep, there, self._claimed().deleting, self._anew)
        published = self._swap(lambda latest: latest.publishing(folder, manifest, self.time(), stay, gone))
        self._lineage, self._anew = stay, False
        return Published(
            step=checkpoint.step,
            uri=f"{self.uri}/{folder}",
            adapter_uri=f"{self.uri}/{folder}/{ADAPTER}",
            adapter_sha256=manifest.adapter_sha256,
            adapter_version=checkpoint.adapter_version,
            epoch=published.epoch,
            published_at=published.published_at or "",
            warnings=tuple(self._delete(gone)),
        )

    def published(self, found: Found) -> Published | None:
        """What readers see of a checkpoint that `start` has found; None for one that is not published."""
        if found.folder is None:
            return None
        latest, manifest = self._claimed(), found.manifest
        return Published(
            step=manifest.step,
            uri=found.uri,
            adapter_uri=f"{found.uri}/{ADAPTER}",
            adapter_sha256=manifest.adapter_sha256,
            adapter_version=manifest.adapter_version,
            epoch=manifest.epoch,
            published_at=(latest.published_at if latest.path == found.folder else None) or manifest.created_at,
            warnings=(),
        )

    def newest_whole(self, unpublished: Iterable[Path] = ()) -> tuple[Found | None, list[str]]:
        """The newest checkpoint whose files all have the size and sha256 that its checkpoint.json says. Claims nothing.

        `start` does not read its files again, if it is still the newest then.

        Args:
            unpublished: Local folders of checkpoints that could not be published; used where newer than what is published, and no later
                run has published since.

        Returns:
            The checkpoint or None, and a warning for each one that was passed over, with file and fault.
        """
        return self._reader.read_ahead(unpublished)

    def newest_unverified(self, unpublished: Iterable[Path] = ()) -> Found | None:
        """What `newest_whole` should find, by checkpoint.json alone. The files, which are not read, may be larger than one's memory."""
        return self._reader.survey(unpublished, with_files=False)[1]

    def _require_same_training(self, found: Found | None) -> None:
        if found is not None:
            require_same_training(found.manifest.identity, self.identity, found.uri)

    def _begin_from(self, found: Found | None) -> None:
        step = -1 if found is None else found.manifest.step
        self._anew = found is None
        self._lineage = tuple(folder for folder in self._claimed().checkpoints if (step_of(folder) or 0) <= step)

    def _write(self, checkpoint: Checkpoint, manifest: Manifest) -> str:
        """Put all files of a checkpoint under the first name that nothing else occupies. Returns the folder's name."""
        names = [
            folder_name(checkpoint.step),
            *(folder_name(checkpoint.step, secrets.token_hex(4)) for _ in range(NAME_ATTEMPTS)),
        ]
        for folder in names:
            if folder not in self._taken and write_folder(self.store, self._path(folder), checkpoint, manifest):
                return folder
            self._require_own_turn()
        raise StorageError(
            f"{self.uri}: something else writes into {names[-1]}, a folder just made. Find out what, and stop it."
        )

    def _delete(self, folders: tuple[str, ...]) -> list[str]:
        """Delete folders that latest.json lists as `deleting`, then take them off that list. Failing is no reason to stop a training."""
        warnings = []
        undone = []
        for folder in folders:
            try:
                self.store.delete_folder(self._path(folder))
            except StorageError as error:
                undone.append(folder)
                warnings.append(f"An old checkpoint is still there: {error}")
        # Those of earlier runs stay listed: their writers may still be deleting.
        listed = tuple(sorted({*undone, *(self._taken & set(folders))}))
        self._taken |= set(undone)
        if listed != folders:
            try:
                self._swap(lambda latest: latest.still_deleting(listed))
            except (StorageError, FencedError) as error:
                self._taken |= set(folders)
                warnings.append(f"Old checkpoints were deleted, but {NAME} still lists them as being deleted: {error}")
        return warnings

    def _swap(self, change: Callable[[Latest], Latest]) -> Latest:
        """Change latest.json if it is still this run's turn."""
        for _ in range(SWAP_ATTEMPTS):
            changed = change(self._claimed())
            tag = self.store.replace_if(self._path(NAME), changed.to_bytes(), self._tag)
            if tag is not None:
                self._latest, self._tag = changed, tag
                return changed
            self._require_own_turn()
        raise StorageError(f"{self.uri}/{NAME}: something else keeps writing it. Find out what, and stop it.")

    def _require_own_turn(self) -> None:
        """Raise FencedError if a newer start has claimed. Garbage, or nothing, is no claim: it is written over."""
        latest, self._tag, _ = self._reader.read_latest()
        mine = self._claimed()
        if latest is not None and latest.writer != self._writer:
            raise FencedError(
                f"{self.uri}: epoch {latest.epoch} took over at {latest.claimed_at} ({latest.host}). This run, epoch {mine.epoch}, stops; "
                f"its last checkpoint was {'step ' + str(mine.step) if mine.step is not None else 'none'}. Nothing of the newer run was "
                "changed. To run both, give one another metadata.name or spec.checkpoint.uri."
            )

    def _claimed(self) -> Latest:
        if self._latest is None:
            raise RuntimeError("call start() or claim() first")
        return self._latest

    def _path(self, name: str) -> str:
        return f"{self.job}/{name}"

    def time(self) -> str:
        """Now, as it is written into checkpoints."""
        return self._now().astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def write_folder(store: Store, prefix: str, checkpoint: Checkpoint, manifest: Manifest) -> bool:
    """Put a checkpoint's files at `prefix`, checkpoint.json last, writing over nothing.

    Returns:
        False where a file with other contents is there already. What a killed run left with the same contents is good as it is.
    """
    files = list(checkpoint.files.items())
    if not all(in_parallel(lambda file: store.put_if_absent(f"{prefix}/{file[0]}", file[1]), files, UPLOADS)):
        return False
    path = f"{prefix}/{MANIFEST}"
    if store.put_if_absent(path, manifest.to_bytes()):
        return True
    try:
        return Manifest.from_bytes(store.get(path) or b"").same_contents(manifest)
    except ValueError:
        return False


def _published(latest: Latest | None) -> tuple[str | None, str | None]:
    return (None, None) if latest is None else (latest.path, latest.published_at)
