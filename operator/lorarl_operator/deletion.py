"""What happens when a LoRARLJob is deleted.

With `checkpoint.deletionPolicy: Retain` the garbage collector does all of it. With `Delete` the finalizer holds the job until its pods are
gone and the clean-up Job has removed the checkpoints; it gives way when that fails, takes too long, or the namespace is going too.
"""

from __future__ import annotations

from datetime import timedelta

from lorarl_api.faults import ManifestError, redacted
from lorarl_operator.decision import AddFinalizer, Apply, Create, Decision, Delete, Event, RemoveFinalizer
from lorarl_operator.manifests.access import cleanup_service_account
from lorarl_operator.manifests.cleanup import CLEANUP, cleanup_job
from lorarl_operator.models import FINALIZER, CleanupJob
from lorarl_operator.names import cleanup_name
from lorarl_operator.snapshot import Snapshot, deletions
from lorarl_operator.valid_spec import checked_spec, part

_AGAIN_SECONDS = 10.0
_SELDOM_SECONDS = 60.0
"""Where a watch tells of the change, as it does of what has our labels; each look posts an Event."""


def deletes_checkpoints(snapshot: Snapshot) -> bool:
    """Whether the checkpoints go with the job."""
    return part(snapshot.spec, "checkpoint").get("deletionPolicy") == "Delete"


def finalizer_actions(snapshot: Snapshot) -> tuple[AddFinalizer | RemoveFinalizer, ...]:
    """Keep the finalizer of a living job as the policy has it."""
    wanted, there = deletes_checkpoints(snapshot), FINALIZER in snapshot.job.finalizers
    if wanted == there:
        return ()
    return (AddFinalizer(),) if wanted else (RemoveFinalizer(),)


def decide_deletion(snapshot: Snapshot) -> Decision:
    """The next step towards the end of a job that is being deleted."""
    if FINALIZER not in snapshot.job.finalizers:
        return Decision()
    # Without a status, an attempt may have been made (and be gone by now) that nobody got to write down.
    never_ran = snapshot.phase and not snapshot.status.get("rayJobName") and not snapshot.ray_jobs
    if not deletes_checkpoints(snapshot) or never_ran:
        return Decision(actions=(RemoveFinalizer(),))
    asked = snapshot.job.deleted_at or snapshot.now
    left = snapshot.settings.cleanup_seconds - (snapshot.now - asked).total_seconds()
    if left <= 0:
        return _give_up(snapshot, f"their removal took longer than {snapshot.settings.cleanup_seconds} s")
    if snapshot.ray_jobs:
        return Decision(actions=tuple(deletions(snapshot.ray_jobs)), recheck_seconds=min(left, _AGAIN_SECONDS))
    if pods := snapshot.holding(snapshot.pods):
        return Decision(recheck_seconds=min(left, snapshot.until_gone(pods)))
    cleanup = snapshot.observed.cleanup
    if cleanup is None or cleanup.job_uid != snapshot.job.uid:
        return _make(snapshot, cleanup, left)
    if cleanup.complete:
        return Decision(
            events=(Event("Normal", "CheckpointsRemoved", f"removed {_where(snapshot)}"),), actions=(RemoveFinalizer(),)
        )
    if cleanup.failed:
        return _give_up(snapshot, f"Job {cleanup.name} failed: {cleanup.failed}")
    if cleanup.suspended:
        message = f"Job {cleanup.name} is held (suspend: true), as Kueue holds Jobs until their queue has room; until then nothing is removed"
        return Decision(
            events=(Event("Normal", "RemovingCheckpoints", message),), recheck_seconds=min(left, _SELDOM_SECONDS)
        )
    return _account(snapshot, cleanup, left)


def _make(snapshot: Snapshot, foreign: CleanupJob | None, left: float) -> Decision:
    name = cleanup_name(snapshot.job.name)
    refusal = snapshot.observed.refusal
    if refusal is not None and refusal.name == name:
        if refusal.reason == "NamespaceTerminating":
            return _give_up(snapshot, "the namespace is being deleted")
        if refusal.reason == "Invalid":
            return _give_up(snapshot, f"the API server refuses Job {name}: {redacted(refusal.message)}")
        waited = (snapshot.now - refusal.at).total_seconds()
        if 0 <= waited < snapshot.refused_for(refusal):
            return Decision(recheck_seconds=min(left, snapshot.refused_for(refusal) - waited))
    if foreign is not None:  # that of an older job with this name; its TTL removes it
        message = f"Job {name} of a job that had this name before is still there; it goes by itself within 5 minutes, or delete it"
        again = _SELDOM_SECONDS if foreign.job_uid else _AGAIN_SECONDS
        return Decision(events=(Event("Normal", "RemovingCheckpoints", message),), recheck_seconds=min(left, again))
    try:
        manifest = cleanup_job(
            snapshot.job, checked_spec(snapshot.job), snapshot.settings, snapshot.now + timedelta(seconds=left), left
        )
    except ManifestError as error:
        return _give_up(snapshot, f"the job is not valid: {error}")
    event = Event(
        "Normal", "RemovingCheckpoints", f"Job {name} removes {_where(snapshot)}; the LoRARLJob goes after that"
    )
    return Decision(events=(event,), actions=(Create(manifest),), recheck_seconds=left)


def _account(snapshot: Snapshot, cleanup: CleanupJob, left: float) -> Decision:
    """The clean-up's ServiceAccount belongs to the Job, so it is made after it; the Job waits for it to make its pod."""
    try:
        cluster = checked_spec(snapshot.job).cluster
    except ManifestError as error:
        return _give_up(snapshot, f"the job is not valid: {error}")
    started = any(pod.role == CLEANUP and pod.job_uid == snapshot.job.uid for pod in snapshot.observed.pods)
    if started or cluster.service_account_name or not cluster.service_account_annotations:
        return Decision(recheck_seconds=left)
    account = cleanup_service_account(snapshot.job, cluster, cleanup)
    if refusal := snapshot.refusal(account):
        return Decision(recheck_seconds=min(left, snapshot.refused_for(refusal)))
    return Decision(prepare=(Apply(account),), recheck_seconds=left)


def _give_up(snapshot: Snapshot, why: str) -> Decision:
    event = Event("Warning", "CheckpointsLeft", f"{_where(snapshot)} stays in the store: {why}. Remove it by hand")
    cleanup = snapshot.observed.cleanup
    # A new job of this name may write there from now on. A clean-up that is still held up knows when its time is over, but need not wait.
    mine = cleanup is not None and cleanup.job_uid == snapshot.job.uid and not cleanup.failed
    going = (Delete("Job", cleanup.name, cleanup.uid),) if cleanup and mine else ()
    return Decision(events=(event,), actions=(RemoveFinalizer(), *going))


def _where(snapshot: Snapshot) -> str:
    return f"{str(part(snapshot.spec, 'checkpoint').get('uri', '')).rstrip('/')}/{snapshot.job.name}"
