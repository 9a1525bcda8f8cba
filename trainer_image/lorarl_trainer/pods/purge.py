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
    """Delete everything under the job's folder and return its URI. Needs the checkpoints' own Secret alone; again is harmless.

    Args:
        job: Whose checkpoints; with a uid, those of another LoRARLJob under the same name stay.
        until: When it has to be over: from then on a new job of this name may write there. SIGALRM ends the process at that time.

    Raises:
        LorarlError: the store refuses or cannot be reached; it is too late; the folder is another job's by now.
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
            f"its time was over at {until:%FT%TZ}, and a job that has the name by now may write there: nothing was deleted"
        )
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, left)


def _require_own(job: LoRARLJob, store: Store) -> None:
    """Raise FencedError where another LoRARLJob trains into the folder, or has done so last."""
    data = store.get(f"{job.name}/{NAME}")
    try:
        latest = Latest.from_bytes(data) if data is not None else None
    except ValueError:
        return  # nobody's claim
    if job.uid and latest is not None and latest.job_uid not in (None, job.uid):
        raise FencedError(
            f"{store.uri_of(job.name)} belongs to another LoRARLJob since {latest.claimed_at} ({latest.host}; uid {latest.job_uid}, "
            f"this one is {job.uid}): nothing was deleted"
        )
