"""latest.json: the one object of a job that is ever written over, and only by compare and swap."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from lorarl_trainer.checkpoint.contents import Manifest, step_of, to_json

NAME = "latest.json"


@dataclass(frozen=True)
class Latest:
    """Which checkpoint is the newest, and whose turn it is to publish.

    Attributes:
        epoch: Every start of the job takes the next one; only the newest may publish.
        writer: Random id of that start.
        host: Host and process of that start, for people.
        job_uid: Which LoRARLJob of a cluster it was a start of; None outside a cluster.
        claimed_at: When it started.
        path: Folder of the newest checkpoint within the job's folder; None before the first publication.
        step: Its step.
        adapter_sha256: Sum of its adapter_model.safetensors.
        adapter_version: Version of its adapter.
        published_at: When it was published.
        published_epoch: By which epoch.
        checkpoints: Folders of all checkpoints that are kept, oldest first; the last is `path`.
        deleting: Folders whose deletion was begun and not yet seen to end. A later start must not write under these names: a deletion
            that was held up would strike its files.
    """

    epoch: int
    writer: str
    host: str
    claimed_at: str
    path: str | None = None
    step: int | None = None
    adapter_sha256: str | None = None
    adapter_version: int | None = None
    published_at: str | None = None
    published_epoch: int | None = None
    checkpoints: tuple[str, ...] = ()
    deleting: tuple[str, ...] = ()
    job_uid: str | None = None

    def claimed_by(self, epoch: int, writer: str, host: str, now: str, job_uid: str | None) -> Latest:
        """The same checkpoint, with the turn given to a new start."""
        return replace(self, epoch=epoch, writer=writer, host=host, claimed_at=now, job_uid=job_uid)

    def publishing(
        self, folder: str, manifest: Manifest, now: str, checkpoints: tuple[str, ...], deleting: tuple[str, ...]
    ) -> Latest:
        """With `folder` as the newest checkpoint."""
        return replace(
            self,
            path=folder,
            step=manifest.step,
            adapter_sha256=manifest.adapter_sha256,
            adapter_version=manifest.adapter_version,
            published_at=now,
            published_epoch=self.epoch,
            checkpoints=checkpoints,
            deleting=deleting,
        )

    def still_deleting(self, folders: tuple[str, ...]) -> Latest:
        """With the deletion of all but `folders` done."""
        return replace(self, deleting=folders)

    def to_bytes(self) -> bytes:
        """As JSON."""
        return to_json(
            {
                "epoch": self.epoch,
                "writer": self.writer,
                "host": self.host,
                "jobUid": self.job_uid,
                "claimedAt": self.claimed_at,
                "path": self.path,
                "step": self.step,
                "adapterSha256": self.adapter_sha256,
                "adapterVersion": self.adapter_version,
                "publishedAt": self.published_at,
                "publishedEpoch": self.published_epoch,
                "checkpoints": list(self.checkpoints),
                "deleting": list(self.deleting),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Latest:
        """Read it back.

        Raises:
            ValueError: It is no latest.json.
        """
        try:
            raw: dict[str, Any] = json.loads(data)
            latest = cls(
                int(raw["epoch"]),
                str(raw["writer"]),
                str(raw["host"]),
                str(raw["claimedAt"]),
                raw["path"],
                raw["step"],
                raw["adapterSha256"],
                raw["adapterVersion"],
                raw["publishedAt"],
                raw["publishedEpoch"],
                tuple(raw["checkpoints"]),
                tuple(raw["deleting"]),
                raw.get("jobUid"),
            )
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
            raise ValueError(f"not what lorarl writes ({type(error).__name__}: {error})") from error
        # Folders listed here get deleted: an empty or strange name must not reach the store.
        strange = [
            name
            for name in (*latest.checkpoints, *latest.deleting)
            if not isinstance(name, str) or step_of(name) is None
        ]
        if strange:
            raise ValueError(f"{strange[0]!r} is no checkpoint's folder")
        if latest.path is not None and latest.path not in latest.checkpoints:
            raise ValueError(f"path {latest.path!r} is not among its checkpoints")
        return latest


def retention(
    kept: tuple[str, ...], folder: str, keep: int, there: list[str], deleting: tuple[str, ...], anew: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Decide what stays when `folder` is published.

    Args:
        kept: Published folders of this training so far, oldest first.
        folder: The folder that is being published.
        keep: How many to keep, `folder` included.
        there: All checkpoint folders that lie in the store, leftovers of killed runs among them.
        deleting: Folders whose deletion was begun earlier.
        anew: Whether this is the first publication of a training from scratch: everything older goes, whatever its step.

    Returns:
        The folders that stay, oldest first, and those to delete. A leftover of a later step stays: its writer may still be at it.
    """
    step = step_of(folder) or 0
    stay = (*(name for name in kept if name != folder), folder)[-keep:]
    gone = {name for name in there if name not in stay and (anew or (step_of(name) or 0) <= step)}
    return stay, tuple(sorted(gone | (set(deleting) - set(stay))))
