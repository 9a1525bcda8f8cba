"""latest.json: a job's only object that is ever overwritten, and only by compare and swap."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any

from lorarl_trainer.checkpoint.contents import Manifest, step_of, to_json
from lorarl_trainer.checkpoint.owner import Owner

NAME = "latest.json"
NOT_RECORDED = Owner("")
SWAP_ATTEMPTS = 20
"""How often a change of it is tried while others change it too."""


@dataclass(frozen=True)
class Best:
    """The best checkpoint so far.

    Attributes:
        path: its folder within the job's folder.
        metric: the column of metrics.jsonl that it was chosen by.
        measured_by: digest of the evaluation that the value is of.
        adapter_sha256: of its adapter_model.safetensors; empty if an older version chose it.
    """

    path: str
    step: int
    metric: str
    value: float
    measured_by: str = ""
    adapter_sha256: str = ""

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Best:
        """Parse what latest.json has of it. A later version may have written more."""
        return cls(**{one.name: raw[one.name] for one in fields(cls) if one.name in raw})


@dataclass(frozen=True)
class BestBy:
    """How the best checkpoint is chosen: by a column of metrics.jsonl, of an evaluation with this digest."""

    metric: str
    largest: bool
    evaluation: str = ""
    measured_by: str = ""

    def knows(self, best: Best) -> bool:
        """Return whether the best checkpoint's value can be compared with new ones."""
        return (best.metric, best.measured_by) == (self.metric, self.measured_by)

    def doubts(self, best: Best | None) -> list[str]:
        """Return a warning if the best checkpoint so far was chosen by an evaluation that has changed since."""
        if best is None or best.metric != self.metric or self.knows(best):
            return []
        return [
            f"spec.checkpoint.keepBest: step {best.step} was the best with {best.metric} {best.value:g}, but the rows, "
            "rewards or sampling of that evaluation changed since. Earlier values no longer count. To keep that "
            f"checkpoint, copy its folder {best.path} elsewhere before the next one is published."
        ]

    def is_better(self, value: float, best: Best | None) -> bool:
        """Return whether a checkpoint with this value takes the place of the best one. A tie leaves the earlier one."""
        if not math.isfinite(value):
            return False
        return best is None or (value > best.value if self.largest else value < best.value)


@dataclass(frozen=True)
class Latest:
    """Which checkpoint is the newest, and which start of the job may publish.

    Attributes:
        epoch: every start of the job takes the next one; only the newest may publish.
        writer: random id of that start.
        host: host and process of that start, for people.
        finished_at: when it had made all steps of the training; None before.
        path: folder of the newest checkpoint within the job's folder; None before the first publication.
        checkpoints: folders of all checkpoints that are kept, oldest first; the last is `path`.
        deleting: folders whose deletion has begun and is not known to have ended. A later start must not write under
            these names, because a delayed deletion would hit its files.
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
    owner: Owner = NOT_RECORDED
    best: Best | None = None
    finished_at: str | None = None

    def claimed_by(self, epoch: int, writer: str, host: str, now: str, owner: Owner) -> Latest:
        """Return this with the right to publish given to a new start."""
        return replace(self, epoch=epoch, writer=writer, host=host, claimed_at=now, owner=owner, finished_at=None)

    def publishing(
        self,
        folder: str,
        manifest: Manifest,
        now: str,
        checkpoints: tuple[str, ...],
        deleting: tuple[str, ...],
        best: Best | None = None,
    ) -> Latest:
        """Return this with `folder` as the newest checkpoint."""
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
            best=best if best and best.path in checkpoints else None,
        )

    def still_deleting(self, folders: tuple[str, ...]) -> Latest:
        """Return this with the deletion of everything but `folders` done."""
        return replace(self, deleting=folders)

    def to_bytes(self) -> bytes:
        """Return the file's content: JSON."""
        return to_json(
            {
                "epoch": self.epoch,
                "writer": self.writer,
                "host": self.host,
                "job": self.owner.name,
                "namespace": self.owner.namespace,
                "jobUid": self.owner.uid,
                "cluster": self.owner.cluster,
                "claimedAt": self.claimed_at,
                "finishedAt": self.finished_at,
                "path": self.path,
                "step": self.step,
                "adapterSha256": self.adapter_sha256,
                "adapterVersion": self.adapter_version,
                "publishedAt": self.published_at,
                "publishedEpoch": self.published_epoch,
                "checkpoints": list(self.checkpoints),
                "deleting": list(self.deleting),
                **({"best": asdict(self.best)} if self.best else {}),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Latest:
        """Parse the file's content. Raises ValueError if it is not a latest.json."""
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
                Owner(raw["job"], raw["jobUid"], raw["namespace"], raw["cluster"]),
                Best.of(raw["best"]) if raw.get("best") else None,
                raw["finishedAt"],
            )
            if latest.finished_at is not None and datetime.fromisoformat(latest.finished_at).tzinfo is None:
                raise ValueError(f"finishedAt {latest.finished_at!r} has no zone")
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
            raise ValueError(f"lorarl did not write it ({type(error).__name__}: {error})") from error
        # Folders listed here are deleted, so an empty or unexpected name must not reach the store.
        unexpected = [
            name
            for name in (*latest.checkpoints, *latest.deleting)
            if not isinstance(name, str) or step_of(name) is None
        ]
        if unexpected:
            raise ValueError(f"{unexpected[0]!r} is not a checkpoint's folder")
        if latest.best is not None and latest.best.path not in latest.checkpoints:
            raise ValueError(f"best {latest.best.path!r} is not one of its checkpoints")
        if latest.path is not None and latest.path not in latest.checkpoints:
            raise ValueError(f"path {latest.path!r} is not one of its checkpoints")
        return latest


def retention(
    published: tuple[str, ...],
    folder: str,
    keep: int | None,
    existing: list[str],
    deleting: tuple[str, ...],
    from_scratch: bool,
    best: str | None = None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Decide which folders to keep when `folder` is published.

    Args:
        published: published folders of this training so far, oldest first.
        folder: the folder that is being published.
        keep: how many to keep, `folder` included; None for all.
        existing: all checkpoint folders in the store, including leftovers of killed runs.
        deleting: folders whose deletion began earlier.
        from_scratch: whether this is the first publication of a training from scratch: everything older is deleted,
            whatever its step.
        best: the folder of the best checkpoint, which is kept besides.

    Returns:
        The folders to keep, oldest first, and those to delete. A leftover of a later step is in neither: its writer may
        still be running.
    """
    step = step_of(folder) or 0
    all_of_them = (*(name for name in published if name != folder), folder)
    newest = all_of_them if keep is None else all_of_them[-keep:]
    kept = tuple(name for name in all_of_them if name in newest or name == best)
    obsolete = {name for name in existing if name not in kept and (from_scratch or (step_of(name) or 0) <= step)}
    return kept, tuple(sorted(obsolete | (set(deleting) - set(kept))))
