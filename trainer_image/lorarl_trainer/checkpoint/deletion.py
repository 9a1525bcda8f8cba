"""Deletes all checkpoints and records of a job. It leaves what lorarl did not write."""

from __future__ import annotations

import os
import secrets
import socket
from datetime import datetime

from lorarl_trainer.checkpoint.contents import step_of
from lorarl_trainer.checkpoint.folders import delete_checkpoint
from lorarl_trainer.checkpoint.latest import NAME, SWAP_ATTEMPTS, Latest
from lorarl_trainer.checkpoint.ownership import objects
from lorarl_trainer.checkpoint.runs import delete_records, record_files
from lorarl_trainer.errors import FencedError, StorageError
from lorarl_trainer.storage import WRITE_CHECK, Store, Tag


def delete_job(store: Store, job: str, uid: str | None, now: datetime) -> list[str]:
    """Delete all checkpoints and records of a job, then its latest.json. It may be repeated.

    A job that never claimed the folder may have records there, of starts that failed early. They name its uid.

    `uid`: uid of its LoRARLJob, which must be in latest.json; None outside a cluster, where the name suffices.

    Returns:
        The paths in the job's folder that stay, because lorarl did not write them.

    Raises:
        FencedError: latest.json does not say that the folder is this job's. Nothing was deleted.
        StorageError: the store failed.
    """
    if not (listed := objects(store, job)):
        return []
    if NAME not in listed and delete_records(store, job, record_files(listed), uid):
        listed = objects(store, job)
        if not any(step_of(path.partition("/")[0]) is not None for path in listed):
            return listed
    closed = _close(store, job, uid, now)
    listed = objects(store, job)
    delete_records(store, job, record_files(listed))
    for folder in dict.fromkeys(path.partition("/")[0] for path in listed):
        if step_of(folder) is not None:
            delete_checkpoint(store, job, folder)
    store.delete([f"{job}/{path}" for path in listed if path.startswith(WRITE_CHECK)])
    path = f"{job}/{NAME}"
    if (found := store.get_tagged(path)) is not None:
        if found[1] != closed:
            raise FencedError(f"{store.uri_of(path)} was written by another run meanwhile: it stays")
        store.delete([path])
    return objects(store, job)


def _close(store: Store, job: str, uid: str | None, now: datetime) -> Tag:
    """Take the folder from every run that may still write there, and list its checkpoints as being deleted."""
    path, uri = f"{job}/{NAME}", store.uri_of(job)
    for _ in range(SWAP_ATTEMPTS):
        latest, tag = _own_latest(store, job, uid)
        folders = tuple(sorted(folder for folder in store.folders(job) if step_of(folder) is not None))
        host = f"{socket.gethostname()}, process {os.getpid()}, lorarl purge"
        closed = Latest(
            latest.epoch + 1, secrets.token_hex(8), host, f"{now:%FT%TZ}", deleting=folders, owner=latest.owner
        )
        if (swapped := store.replace_if(path, closed.to_bytes(), tag)) is not None:
            return swapped
    raise StorageError(f"{uri}/{NAME}: another program keeps writing it. Find it and stop it.")


def _own_latest(store: Store, job: str, uid: str | None) -> tuple[Latest, Tag]:
    """Return the job's latest.json.

    Raises:
        FencedError: there is none, it is not lorarl's, or another LoRARLJob was the last to claim the folder.
    """
    uri = store.uri_of(job)
    read = store.get_tagged(f"{job}/{NAME}")
    if read is None:
        raise FencedError(f"{uri} has no {NAME}, so nothing proves that lorarl wrote it: nothing was deleted")
    try:
        latest = Latest.from_bytes(read[0])
    except ValueError as error:
        raise FencedError(f"{uri}/{NAME} is not lorarl's ({error}): nothing was deleted") from None
    owner = latest.owner
    if uid and owner.uid != uid:
        which = f", {named}," if (named := str(owner).removeprefix("job ")) else ""  # old runs recorded no owner
        raise FencedError(
            f"{uri} has belonged to a different job{which} since {latest.claimed_at} ({latest.host}; uid "
            f"{owner.uid or 'none'}, this one is {uid}): nothing was deleted"
        )
    return latest, read[1]
