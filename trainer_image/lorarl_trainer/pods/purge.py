"""`lorarl purge`: deletes a job's checkpoints, for spec.checkpoint.deletionPolicy Delete."""

from __future__ import annotations

import signal
from datetime import UTC, datetime

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.checkpoint.contents import step_of
from lorarl_trainer.checkpoint.deletion import delete_job
from lorarl_trainer.checkpoint.ownership import objects, some
from lorarl_trainer.errors import FencedError
from lorarl_trainer.storage import Store, open_store
from lorarl_trainer.storage.secrets import read_secret


def purge(job: LoRARLJob, until: datetime | None = None) -> str:
    """Delete what lorarl wrote to the job's folder, and return what was done in one line.

    It may be repeated, and needs only the checkpoints' Secret.

    Args:
        job: the job. If it has a uid, the folder must have been claimed by it.
        until: the deadline, from which on a new job of this name may write there. SIGALRM ends the process at that
            time.

    Raises:
        FencedError: the deadline has passed, or nothing proves that the folder is this job's.
        LorarlError: the store refuses or cannot be reached.
    """
    if until is not None:
        _end_at(until)
    store = _store(job)
    if not objects(store, job.name):
        return f"nothing to delete in {store.uri_of(job.name)}"
    left = delete_job(store, job.name, job.uid, datetime.now(UTC))
    done = f"deleted the checkpoints in {store.uri_of(job.name)}"
    return f"{done}. It still has what lorarl did not write: {some(left)}" if left else done


def outlook(job: LoRARLJob) -> str | None:
    """Return what a purge would delete, in words: where it is, how many checkpoints, and their size. None for nothing.

    Raises:
        LorarlError: the store refuses or cannot be reached.
    """
    store = _store(job)
    entries = [entry for entry in store.entries(job.name) if entry.path.startswith(f"{job.name}/")]
    if not entries:
        return None
    steps = {folder for entry in entries if step_of(folder := entry.path.split("/")[1]) is not None}
    size = sum(entry.size for entry in entries)
    shown = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
    checkpoints = f"{len(steps)} checkpoint{'' if len(steps) == 1 else 's'}"
    return f"{store.uri_of(job.name)}: {checkpoints} and the records of its runs, {shown} in all"


def _store(job: LoRARLJob) -> Store:
    spec = job.spec.checkpoint
    secret = (
        read_secret(spec.credentials_secret, "spec.checkpoint.credentialsSecret") if spec.credentials_secret else {}
    )
    return open_store(spec.uri, secret, field="spec.checkpoint.uri")


def _end_at(until: datetime) -> None:
    left = (until - datetime.now(UTC)).total_seconds()
    if left <= 0:
        raise FencedError(
            f"the deadline {until:%FT%TZ} has passed, and a newer job of this name may be using the folder, so nothing "
            "was deleted"
        )
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, left)
