"""Who still needs a job that has ended, so that neither a ttl nor a limit of the history deletes it yet.

A sweep or schedule learns from the job how it ended, and where its adapter is. The publisher brings the last version to
its servers. Each has a queue beside that of jobs, and may be behind.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from lorarl_api.faults import ManifestError
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.published_entry import is_done
from lorarl_operator.decide.schedule_models import Schedule
from lorarl_operator.decide.status import FINISHED, SUCCEEDED
from lorarl_operator.decide.sweep_models import Sweep, stored_trials
from lorarl_operator.decide.sweep_trials import ENDED
from lorarl_operator.decide.valid_spec import checked_spec
from lorarl_operator.decide.versions import stored_entries

_LONG = timedelta(minutes=5)
AWAITED_SECONDS = 30.0
"""When to look again at what is deleted as soon as others have what they need of it."""


def is_noted(job: Job, maker: Sweep | Schedule) -> bool:
    """Whether the status of the sweep or schedule that made a job has its end."""
    status, told = job.read_status(), maker.read_status()
    if isinstance(maker, Sweep):
        trial = stored_trials(told).get(job.name, {})
        return trial.get("uid") == job.uid and trial.get("phase") in ENDED
    if job.uid in {one.get("uid") for one in told.get("active") or ()}:
        return False
    if told.get("lastJob") == job.name and told.get("lastPhase") not in FINISHED:
        return False
    ended = str(status.get("completionTime") or "")
    return status.get("phase") != SUCCEEDED or str(told.get("lastSuccessfulTime") or "") >= ended


def is_published(job: Job) -> bool:
    """Whether a job has nothing left to publish, nor to withdraw."""
    return not _unpublished(job)


def long_unpublished(job: Job, now: datetime) -> list[str]:
    """The entries of a job that are not served or withdrawn, and have been in the same state for some minutes."""
    stored, before = stored_entries(job.read_status()), now - _LONG
    return [name for name in _unpublished(job) if name in stored and stored[name].since <= before]


def _unpublished(job: Job) -> list[str]:
    """The entries of a job that are still to be published, or withdrawn."""
    if b'"publish' not in job.spec + job.status:
        return []
    try:
        entries = {one.name: one for one in checked_spec(job).publish or ()}
    except ManifestError:
        return []  # The publisher cannot read it either.
    status = job.read_status()
    stored = stored_entries(status)
    done = [name for name in entries.keys() & stored.keys() if is_done(entries[name], status, stored[name])]
    return sorted((entries.keys() | stored.keys()) - set(done))
