"""Publishing and resuming checkpoints of one job, with any number of runs on the same folder.

This stays correct wherever a run is paused, killed or repeated:
- No object except latest.json is ever overwritten. A file is written only where none exists. If one with other bytes
  exists (a killed run's leftover), the checkpoint goes to a folder with a new name.
- latest.json changes only by compare and swap, so an older run cannot publish once a newer run has claimed the job.
- A run deletes only in folders that its latest.json, written before, lists as `deleting`. No later run writes under
  those names, so a delayed deletion cannot hit a later run's files.
- It deletes only files of checkpoints (`ownership.py`), and does not start where other programs keep theirs.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from lorarl_trainer.checkpoint.claim import require_free
from lorarl_trainer.checkpoint.contents import (
    ADAPTER,
    ADAPTER_METADATA,
    CARD,
    MANIFEST,
    Checkpoint,
    Manifest,
    folder_name,
    step_of,
)
from lorarl_trainer.checkpoint.folders import delete_checkpoint, write_folder
from lorarl_trainer.checkpoint.identity import Identity, require_same_training
from lorarl_trainer.checkpoint.latest import NAME, SWAP_ATTEMPTS, Best, BestBy, Latest, retention
from lorarl_trainer.checkpoint.owner import Owner
from lorarl_trainer.checkpoint.ownership import require_own
from lorarl_trainer.checkpoint.reader import CheckpointReader, Found
from lorarl_trainer.errors import FencedError, StorageError
from lorarl_trainer.storage import Store, Tag

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
    """How a run begins: its epoch, the checkpoint to resume from (None: from scratch), and warnings for the user."""

    epoch: int
    found: Found | None
    warnings: tuple[str, ...]


class CheckpointStore:
    """The checkpoints under `<store>/<job>/`, as one run sees them.

    Call `start` (or `claim`) once, then `publish`. Not safe to use from several threads at once.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        *,
        keep: int | None,
        identity: Identity,
        best_by: BestBy | None = None,
        owner: Owner | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        """Name the job and its training.

        Args:
            store: where checkpoints go.
            job: name of the job, and of its folder in the store.
            keep: how many of the newest checkpoints to keep; None for all.
            identity: what training this is; a checkpoint of another one is refused.
            best_by: how the best checkpoint is chosen, which is kept too; None if none is.
            owner: the LoRARLJob in a cluster; None outside.
            now: the clock; only tests set it.
        """
        self.store, self.job, self.keep, self._best_by, self._owner = store, job, keep, best_by, owner or Owner(job)
        self.identity: Identity = json.loads(json.dumps(dict(identity)))  # as JSON returns it: lists, not tuples
        self.uri = store.uri_of(job)
        self._now = now or (lambda: datetime.now(UTC))
        self._writer = secrets.token_hex(8)
        self._host = f"{socket.gethostname()}, process {os.getpid()}"
        self._latest: Latest | None = None
        self._tag: Tag | None = None
        self._lineage: tuple[str, ...] = ()
        self._reserved: set[str] = set()
        self._from_scratch = False
        self._reader = CheckpointReader(store, job, self.identity)

    @property
    def epoch(self) -> int:
        """This run's epoch. Valid only after `start` or `claim`."""
        return self._claimed().epoch

    def start(self, resume: Literal["Auto", "Never"], unpublished: Iterable[Path] = ()) -> Started:
        """Take the next epoch and find the checkpoint to resume from.

        If the manifest does not match the checkpoint, or the folder holds other things, nothing is claimed, so a
        running job is not fenced off.

        Args:
            resume: Auto resumes from the newest whole checkpoint. Never starts from scratch; older checkpoints are
                deleted at the first publication.
            unpublished: local folders where earlier runs may have left checkpoints that they could not publish.

        Raises:
            InputError: the checkpoint belongs to another training, or the job's folder is not its own.
            StorageError: the store failed, or there are checkpoints but none is whole.
        """
        folders = tuple(unpublished)
        if resume == "Auto":
            seen, found, warnings = self._reader.survey(folders)
        else:
            seen, found, warnings = self._reader.read_latest()[0], None, []
        warnings += require_own(self.store, self._owner, seen)
        self._require_same_training(found)
        warnings += self.claim()
        if resume == "Auto" and _published(seen) != _published(self._claimed()):
            # An older run published between our survey and our claim. It cannot do so again.
            _, found, more = self._reader.survey(folders)
            self._require_same_training(found)
            warnings += more
        if found is None and resume == "Auto" and self._claimed().checkpoints:
            raise StorageError(
                f"{self.uri}: no checkpoint is whole. {' '.join(warnings)} Restore one from a copy, or start from "
                "scratch with spec.checkpoint.resume: Never (that deletes the existing ones at its first "
                "publication)."
            )
        self._resume_from(found)
        if found and self._best_by:
            warnings += self._best_by.doubts(self._claimed().best)
        self._reader.forget()
        return Started(self.epoch, found, tuple(dict.fromkeys(warnings)))

    def require_own_folder(self) -> None:
        """Check early that no other job uses the job's folder, and no other program. Claims nothing.

        Raises:
            InputError: one does; it names the job, or some of the objects.
        """
        latest, _, _ = self._reader.read_latest()
        if latest is not None:
            require_free(latest, self._owner, self._now(), self.store.uri)
        require_own(self.store, self._owner, latest)

    def claim(self) -> list[str]:
        """Take the next epoch. Every older run is fenced off from now on and stops at its next publication.

        Returns:
            Warnings, in case latest.json was corrupt: the fault, and what was used instead.

        Raises:
            InputError: another job may still use the folder.
            StorageError: the store failed.
        """
        for _ in range(SWAP_ATTEMPTS):
            latest, tag, warnings = self._reader.read_latest()
            if latest is None:
                latest = self._reader.recover_latest()
            require_free(latest, self._owner, self._now(), self.store.uri)
            claimed = latest.claimed_by(latest.epoch + 1, self._writer, self._host, self.time(), self._owner)
            swapped = self.store.replace_if(self._path(NAME), claimed.to_bytes(), tag)
            if swapped is not None:
                self._latest, self._tag = claimed, swapped
                self._lineage, self._reserved = claimed.checkpoints, set(claimed.deleting)
                return warnings
        raise StorageError(
            f"{self.uri}/{NAME}: {SWAP_ATTEMPTS} other starts of this job were faster. Start it only once."
        )

    def publish(self, checkpoint: Checkpoint) -> Published:
        """Make `checkpoint` the newest, then delete all but the newest `keep`.

        Raises:
            FencedError: a newer start of the job has taken over. None of its files were changed.
            StorageError: the store failed; readers still see the previous checkpoint.
        """
        self._require_not_fenced()
        manifest = Manifest.of(checkpoint, self.job, self.epoch, self.time(), self.identity)
        folder = self._write(checkpoint, manifest)
        there = [name for name in self.store.folders(self.job) if step_of(name) is not None]
        latest, best = self._claimed(), self.best
        path = best.path if best else None
        stay, gone = retention(self._lineage, folder, self.keep, there, latest.deleting, self._from_scratch, path)
        published = self._swap_latest(lambda latest: latest.publishing(folder, manifest, self.time(), stay, gone, best))
        self._lineage, self._from_scratch = stay, False
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

    def complete(self, step: int, card: bytes | None, value: float | None) -> None:
        """Add what an evaluation found to a published checkpoint: its model card, and whether it is the best.

        A step without a checkpoint is ignored: a newer one took its place while it waited.

        `card`: the model card with the results; None if an earlier run evaluated the step: its card stays, and its
        value counts if that run measured as this one does. `value`: what the best checkpoint is chosen by; None if none
        is.

        Raises:
            FencedError: a newer start of the job has taken over.
            StorageError: the store failed.
        """
        folder = next((name for name in reversed(self._lineage) if step_of(name) == step), None)
        if folder is None:
            return
        self._require_not_fenced()
        if card is not None:
            self.store.put(self._path(f"{folder}/{CARD}"), card)
        by = self._best_by
        if by and value is not None and by.is_better(value, self.best) and (card or self._measured_alike(folder, by)):
            best = Best(folder, step, by.metric, value, by.measured_by, self._adapter_sha256(folder))
            self._swap_latest(lambda latest: replace(latest, best=best))

    def _adapter_sha256(self, folder: str) -> str:
        """Return the sha256 of a published adapter, as its checkpoint.json has it."""
        described = self.store.get(self._path(f"{folder}/{MANIFEST}"))
        return Manifest.from_bytes(described).adapter_sha256 if described else ""

    def _measured_alike(self, folder: str, by: BestBy) -> bool:
        """Return whether the run that made a checkpoint had the evaluation by which the best one is chosen now."""
        metadata = json.loads(self.store.get(self._path(f"{folder}/{ADAPTER_METADATA}")) or b"{}")
        return str(metadata.get("evaluations", {}).get(by.evaluation, "")) == by.measured_by

    def finish(self) -> None:
        """Record in latest.json that all steps of the training are made.

        Raises:
            FencedError: a newer start of the job has taken over.
            StorageError: the store failed.
        """
        self._swap_latest(lambda latest: replace(latest, finished_at=self.time()))

    @property
    def keeps_best(self) -> bool:
        """Whether the best checkpoint is kept besides the newest ones."""
        return self._best_by is not None

    @property
    def best(self) -> Best | None:
        """The best checkpoint of this training so far, by the metric that the job asks for; None if it is not known."""
        best = self._claimed().best
        if best is None or self._best_by is None or not self._best_by.knows(best):
            return None
        return best if best.path in self._lineage else None

    def published(self, found: Found) -> Published | None:
        """Return what readers see of a checkpoint that `start` found; None if it is not published."""
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
        """Find the newest checkpoint whose files all have the size and sha256 that its checkpoint.json lists.

        Claims nothing.

        If it is still the newest when `start` is called, its files are not read again.

        Args:
            unpublished: local folders of checkpoints that could not be published. One counts if it is newer than
                everything published and no later run has published since.

        Returns:
            The checkpoint or None, and a warning with file and fault for each checkpoint that was skipped.
        """
        return self._reader.read_ahead(unpublished)

    def newest_unverified(self, unpublished: Iterable[Path] = ()) -> Found | None:
        """Return what `newest_whole` should find, judged by checkpoint.json alone.

        The files are not read: they may be larger than this machine's memory.
        """
        return self._reader.survey(unpublished, files=())[1]

    def _require_same_training(self, found: Found | None) -> None:
        if found is not None:
            require_same_training(found.manifest.identity, self.identity, found.uri)

    def _resume_from(self, found: Found | None) -> None:
        step = -1 if found is None else found.manifest.step
        self._from_scratch = found is None
        self._lineage = tuple(folder for folder in self._claimed().checkpoints if (step_of(folder) or 0) <= step)

    def _write(self, checkpoint: Checkpoint, manifest: Manifest) -> str:
        """Write a checkpoint's files into the first folder name that is free. Returns the folder's name."""
        names = [
            folder_name(checkpoint.step),
            *(folder_name(checkpoint.step, secrets.token_hex(4)) for _ in range(NAME_ATTEMPTS)),
        ]
        for folder in names:
            if folder not in self._reserved and write_folder(self.store, self._path(folder), checkpoint, manifest):
                return folder
            self._require_not_fenced()
        raise StorageError(
            f"{self.uri}: another program is writing into the new folder {names[-1]}. Find it and stop it."
        )

    def _delete(self, folders: tuple[str, ...]) -> list[str]:
        """Delete folders that latest.json lists as `deleting`, then remove them from that list.

        A failure becomes a warning: it is no reason to stop training.
        """
        warnings = []
        failed = []
        for folder in folders:
            try:
                delete_checkpoint(self.store, self.job, folder)
            except StorageError as error:
                failed.append(folder)
                warnings.append(f"An old checkpoint could not be deleted: {error}")
        # Folders that earlier runs listed stay listed: those runs may still be deleting them.
        listed = tuple(sorted({*failed, *(self._reserved & set(folders))}))
        self._reserved |= set(failed)
        if listed != folders:
            try:
                self._swap_latest(lambda latest: latest.still_deleting(listed))
            except (StorageError, FencedError) as error:
                self._reserved |= set(folders)
                warnings.append(f"Old checkpoints were deleted, but {NAME} still lists them as being deleted: {error}")
        return warnings

    def _swap_latest(self, change: Callable[[Latest], Latest]) -> Latest:
        """Change latest.json, unless a newer start has claimed it."""
        for _ in range(SWAP_ATTEMPTS):
            changed = change(self._claimed())
            tag = self.store.replace_if(self._path(NAME), changed.to_bytes(), self._tag)
            if tag is not None:
                self._latest, self._tag = changed, tag
                return changed
            self._require_not_fenced()
        raise StorageError(f"{self.uri}/{NAME}: another program keeps writing it. Find it and stop it.")

    def _require_not_fenced(self) -> None:
        """Raise FencedError if a newer start has claimed the job. A missing or corrupt latest.json is no claim."""
        latest, self._tag, _ = self._reader.read_latest()
        mine = self._claimed()
        if latest is not None and latest.writer != self._writer:
            last = "none" if mine.step is None else f"step {mine.step}"
            raise FencedError(
                f"{self.uri}: epoch {latest.epoch} took over at {latest.claimed_at} ({latest.host}, {latest.owner}). "
                f"This run, epoch "
                f"{mine.epoch}, stops; its last checkpoint was {last}. "
                "The newer run's files were not changed. To run both, give one of them another metadata.name or "
                "spec.checkpoint.uri."
            )

    def _claimed(self) -> Latest:
        if self._latest is None:
            raise RuntimeError("call start() or claim() first")
        return self._latest

    def _path(self, name: str) -> str:
        return f"{self.job}/{name}"

    def time(self) -> str:
        """The current time in the format that checkpoints use."""
        return self._now().astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _published(latest: Latest | None) -> tuple[str | None, str | None]:
    return (None, None) if latest is None else (latest.path, latest.published_at)
