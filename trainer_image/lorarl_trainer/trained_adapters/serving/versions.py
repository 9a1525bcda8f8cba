"""The versions of an adapter in a job's folder of its store: which are served, and their files on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorarl_trainer.checkpoint.contents import ADAPTER, ADAPTER_CONFIG, ADAPTER_METADATA, MANIFEST, Manifest, step_of
from lorarl_trainer.checkpoint.latest import NAME, Latest
from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.storage import Store

type Choice = str | int | None
"""`best`, `newest`, a step, or None: the best if the job chose one, otherwise the newest."""


class NotWholeError(LorarlError):
    """A checkpoint lacks files, or they are not those that its checkpoint.json describes."""


@dataclass(frozen=True)
class Wanted:
    """Folders of checkpoints to serve: the one that the run's own name means, and all, that one first."""

    main: str
    folders: tuple[str, ...]


def wanted(latest: Latest, choice: Choice, most: int) -> Wanted | None:
    """Return which checkpoints to serve, at most so many; None while there is none.

    Raises:
        InputError: there is no checkpoint of that step, or no best one.
    """
    if latest.path is None:
        return None
    newest_first = tuple(reversed(latest.checkpoints))
    if isinstance(choice, int):
        found = next((folder for folder in newest_first if step_of(folder) == choice), None)
        if found is None:
            steps = ", ".join(str(step_of(folder)) for folder in latest.checkpoints)
            raise InputError("--checkpoint", str(choice), "a step whose checkpoint is kept", f"There are {steps}.")
        return Wanted(found, (found,))
    if choice == "best" and latest.best is None:
        hint = "Leave --checkpoint out to serve the newest one."
        raise InputError("--checkpoint", "best, but none was chosen", "a run with spec.checkpoint.keepBest", hint)
    main = latest.path if choice == "newest" or latest.best is None else latest.best.path
    return Wanted(main, (main, *(folder for folder in newest_first if folder != main))[:most])


@dataclass(frozen=True)
class Version:
    """An adapter's files on this machine.

    Attributes:
        key: no other adapter has it, whatever its name and step.
        step: None if nothing says it.
        folder: PEFT's.
    """

    key: str
    step: int | None
    folder: Path
    config: Mapping[str, Any]
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, key: str, step: int | None, folder: Path) -> Version:
        """Read what its files say. lorarl_metadata.json is lorarl's own."""
        metadata = folder / Path(ADAPTER_METADATA).name
        return cls(
            key,
            step,
            folder,
            json.loads((folder / Path(ADAPTER_CONFIG).name).read_text(encoding="utf-8")),
            json.loads(metadata.read_text(encoding="utf-8")) if metadata.is_file() else {},
        )


def read_latest(home: Store) -> Latest | None:
    """Return the latest.json of a job's folder; None if it has none, or one that cannot be read."""
    try:
        return Latest.from_bytes(home.get(NAME) or b"")
    except ValueError:
        return None


def fetch(home: Store, checkpoint: str, into: Path) -> Version:
    """Copy the adapter of a checkpoint: the run deletes its checkpoints, and the server may read a file again.

    Raises:
        NotWholeError: it is not whole.
        StorageError: the store cannot be read.
    """
    try:
        manifest = Manifest.from_bytes(home.get(f"{checkpoint}/{MANIFEST}") or b"")
    except ValueError as error:
        raise NotWholeError(f"its {MANIFEST} is missing or broken, so it is not whole") from error
    target = into / checkpoint
    for path in manifest.files:
        if path.startswith(f"{ADAPTER}/"):
            data = home.get_large(f"{checkpoint}/{path}")
            if (fault := manifest.fault(path, data)) or data is None:
                raise NotWholeError(f"it is not whole: {fault}")
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    return Version.of(manifest.adapter_sha256[:8], manifest.step, target / ADAPTER)
