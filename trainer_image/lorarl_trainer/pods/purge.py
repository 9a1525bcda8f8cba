"""`lorarl purge`: deletes a job's checkpoints, for spec.checkpoint.deletionPolicy Delete."""

from __future__ import annotations

import signal
from datetime import UTC, datetime

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.checkpoint.latest import NAME, Latest
from lorarl_trainer.errors import FencedError
from lorarl_trainer.storage import Store, open_store
from lorarl_trainer.storage.secrets import read_secret


def purge(job: LoRARLJob, until: datetime | None = None) -> str:
    """Delete everything under the job's folder and return its URI.

    It may be repeated, and needs only the checkpoints' Secret.

    Args:
        job: the job. If it has a uid, checkpoints of another LoRARLJob of the same name are not deleted.
        until: the deadline, from which on a new job of this name may write there. SIGALRM ends the process at that
            time.

    Raises:
        LorarlError: the store refuses or cannot be reached, the deadline has passed, or the folder now belongs to
            another job.
    """
    if until is not None:
        _end_at(until)
    spec = job.spec.checkpoint
    secret = (
        read_secret(spec.credentials_secret, "spec.checkpoint.credentialsSecret") if spec.credentials_secret else {}
    )
    store = open_store(spec.uri, secret, field="spec.checkpoint.uri")
    _require_own(job, store)
    store.delete_folder(job.name)
    return store.uri_of(job.name)


def _end_at(until: datetime) -> None:
    left = (until - datetime.now(UTC)).total_seconds()
    if left <= 0:
        raise FencedError(
            f"the deadline {until:%FT%TZ} has passed, and a new job of this name may write there: nothing was deleted"
        )
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, left)


def _require_own(job: LoRARLJob, store: Store) -> None:
    """Raise FencedError if another LoRARLJob was the last to claim the folder."""
    data = store.get(f"{job.name}/{NAME}")
    try:
        latest = Latest.from_bytes(data) if data is not None else None
    except ValueError:
        return  # a corrupt latest.json is no claim
    if job.uid and latest is not None and latest.job_uid not in (None, job.uid):
        raise FencedError(
            f"{store.uri_of(job.name)} has belonged to another LoRARLJob since {latest.claimed_at} ({latest.host}; uid "
            f"{latest.job_uid}, this one is {job.uid}): nothing was deleted"
        )
