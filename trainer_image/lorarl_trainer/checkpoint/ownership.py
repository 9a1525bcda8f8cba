"""Which objects of a job's folder lorarl wrote for this job. Nothing else there is ever deleted.

A checkpoint's `checkpoint.json` lists its files. Where a killed run left none, the paths that a checkpoint may have
decide. The record of a run has a `run.json`, and files of known names (`runs.py`). In a folder that no run has claimed,
and whose checkpoints and records name no job of this name, nothing is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lorarl_trainer.checkpoint.contents import CARD, MANIFEST, Manifest, is_checkpoint_file, step_of
from lorarl_trainer.checkpoint.latest import NAME, Latest
from lorarl_trainer.checkpoint.owner import Owner
from lorarl_trainer.checkpoint.runs import read_runs, record_files
from lorarl_trainer.errors import InputError
from lorarl_trainer.storage import WRITE_CHECK, Store

_SHOWN = 3


def objects(store: Store, folder: str) -> list[str]:
    """Return the paths of all objects in a folder, relative to it, sorted."""
    prefix = f"{folder}/"
    return [entry.path.removeprefix(prefix) for entry in store.entries(folder) if entry.path.startswith(prefix)]


def own_files(present: Iterable[str], manifest: Manifest | None, job: str) -> list[str]:
    """Return the files of a checkpoint's folder that were written for a checkpoint of the job.

    `manifest`: its checkpoint.json; None if it is missing or corrupt.
    """
    if manifest is None:
        return [path for path in present if is_checkpoint_file(path)]
    own = {*manifest.files, CARD, MANIFEST} if manifest.job == job else set()
    return [path for path in present if path in own]


def read_manifest(store: Store, folder: str) -> Manifest | None:
    """Return the checkpoint.json of a checkpoint's folder; None if it is missing or corrupt."""
    data = store.get(f"{folder}/{MANIFEST}")
    try:
        return None if data is None else Manifest.from_bytes(data)
    except ValueError:
        return None


def foreign_objects(store: Store, job: str, latest: Latest | None) -> tuple[list[str], bool]:
    """Look for objects in the job's folder that lorarl did not write for this job.

    `latest`: its latest.json; None if it is missing or corrupt.

    Returns:
        Their paths, and whether a job of this name has used the folder at all.
    """
    listed = objects(store, job)
    checkpoints: dict[str, list[str]] = {}
    for path in listed:
        folder, _, file = path.partition("/")
        if file and step_of(folder) is not None:
            checkpoints.setdefault(folder, []).append(file)
    expected = {*latest.checkpoints, *latest.deleting} if latest else set()
    own, is_ours = {NAME}, latest is not None
    for folder, files in checkpoints.items():
        if folder in expected and all(map(is_checkpoint_file, files)):
            manifest = None  # it need not be read
        else:
            manifest = read_manifest(store, f"{job}/{folder}")
        is_ours = is_ours or (manifest is not None and manifest.job == job)
        own |= {f"{folder}/{file}" for file in own_files(files, manifest, job)}
    records = record_files(listed)
    is_ours = is_ours or bool(records and read_runs(store, job, list(records)))
    own |= {f"{folder}/{file}" for folder, files in records.items() for file in files}
    return [path for path in listed if not path.startswith(WRITE_CHECK) and not (is_ours and path in own)], is_ours


def require_own(store: Store, owner: Owner, latest: Latest | None) -> list[str]:
    """Refuse a job's folder that holds objects which lorarl did not write for this job.

    A job that has claimed the folder before is only warned: it must not end because someone left a note there.

    `latest`: the folder's latest.json; None if it is missing or corrupt.

    Returns:
        The warning, if there is one.

    Raises:
        InputError: there are such objects; it names some.
    """
    foreign, is_ours = foreign_objects(store, owner.name, latest)
    if not foreign:
        return []
    uri = store.uri_of(owner.name)
    if is_ours and (latest is None or latest.owner.uid == owner.uid):
        return [f"{uri} holds objects that lorarl did not write: {some(foreign)}. It never deletes them."]
    raise InputError(
        "spec.checkpoint.uri",
        f"{store.uri}, whose folder {owner.name}/ holds objects that lorarl did not write for this job: "
        f"{some(foreign)}",
        f"no folder {owner.name}/ there, or one with this job's checkpoints only",
        "Use another metadata.name or spec.checkpoint.uri, or move these objects elsewhere.",
    )


def some(paths: Sequence[str]) -> str:
    """Name the first of some objects: `a, b, c and 5 more`."""
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
