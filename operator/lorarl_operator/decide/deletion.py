"""What happens when a LoRARLJob is deleted.

With `checkpoint.deletionPolicy: Retain` the garbage collector does everything. With `Delete` the finalizer keeps the
job until its pods are gone and the clean-up Job has removed the checkpoints. The operator gives up if that fails, if
it takes too long, or if the namespace is being deleted too.
"""

from __future__ import annotations

from datetime import timedelta

from lorarl_api.faults import ManifestError
from lorarl_api.redaction import redacted
from lorarl_operator.decide.admission import by_admission
from lorarl_operator.decide.decision import AddFinalizer, Apply, Create, Decision, Delete, Event, RemoveFinalizer
from lorarl_operator.decide.messages import sentences
from lorarl_operator.decide.models import FINALIZER, CleanupJob
from lorarl_operator.decide.names import cleanup_name
from lorarl_operator.decide.news_reasons import News
from lorarl_operator.decide.snapshot import Snapshot, deletions
from lorarl_operator.decide.status import SUCCEEDED
from lorarl_operator.decide.valid_spec import checked_spec, section
from lorarl_operator.manifests.access import cleanup_service_account
from lorarl_operator.manifests.cleanup import CLEANUP, cleanup_job

_AGAIN_SECONDS = 10.0
_SELDOM_SECONDS = 60.0
"""Recheck period where a watch reports the change anyway, as for all that has our labels.

Each look records an Event.
"""


def deletes_checkpoints(snapshot: Snapshot) -> bool:
    """Whether the checkpoints are deleted with the job."""
    return section(snapshot.spec, "checkpoint").get("deletionPolicy") == "Delete"


def finalizer_actions(snapshot: Snapshot) -> tuple[AddFinalizer | RemoveFinalizer, ...]:
    """Set or remove the finalizer of a live job, as its deletion policy demands."""
    wanted, present = deletes_checkpoints(snapshot), FINALIZER in snapshot.job.finalizers
    if wanted == present:
        return ()
    return (AddFinalizer(),) if wanted else (RemoveFinalizer(),)


def decide_deletion(snapshot: Snapshot) -> Decision:
    """The next step in the deletion of a job."""
    if FINALIZER not in snapshot.job.finalizers:
        return Decision()
    # Without a status, there may have been an attempt that no operator lived to record.
    never_ran = snapshot.phase and not snapshot.status.get("rayJobName") and not snapshot.ray_jobs
    if not deletes_checkpoints(snapshot) or never_ran:
        return Decision(actions=(RemoveFinalizer(),))
    asked = snapshot.job.deleted_at or snapshot.now
    left = snapshot.settings.cleanup_seconds - (snapshot.now - asked).total_seconds()
    if left <= 0:
        return _give_up(snapshot, f"Their removal took longer than {snapshot.settings.cleanup_seconds} s")
    # After a success nothing trains any more. The RayJob and the head are then deleted with the LoRARLJob.
    if snapshot.phase == SUCCEEDED:
        return _remove_checkpoints(snapshot, left)
    if snapshot.ray_jobs:
        return Decision(actions=tuple(deletions(snapshot.ray_jobs)), recheck_seconds=min(left, _AGAIN_SECONDS))
    if pods := snapshot.active_pods(snapshot.pods):
        return Decision(recheck_seconds=min(left, snapshot.until_gone(pods)))
    return _remove_checkpoints(snapshot, left)


def _remove_checkpoints(snapshot: Snapshot, left: float) -> Decision:
    cleanup = snapshot.observed.cleanup
    if cleanup is None or cleanup.job_uid != snapshot.job.uid:
        return _create_cleanup(snapshot, cleanup, left)
    return _follow_cleanup(snapshot, cleanup, left)


def _create_cleanup(snapshot: Snapshot, foreign: CleanupJob | None, left: float) -> Decision:
    name = cleanup_name(snapshot.job.name)
    if refusal := snapshot.observed.refused("Job", {name}):
        if refusal.reason == "NamespaceTerminating":
            return _give_up(snapshot, "The namespace is being deleted")
        if refusal.reason == "Invalid" and not by_admission(refusal.message):
            return _give_up(snapshot, f"The API server refuses Job {name}: {redacted(refusal.message)}")
        waited = (snapshot.now - refusal.at).total_seconds()
        if 0 <= waited < snapshot.retry_seconds(refusal):
            return Decision(recheck_seconds=min(left, snapshot.retry_seconds(refusal) - waited))
    if foreign is not None:  # It belongs to an older job with this name. Its TTL removes it.
        message = (
            f"Job {name} of an older job with this name still exists. "
            "It disappears by itself within 5 minutes; to go faster, delete it."
        )
        again = _SELDOM_SECONDS if foreign.job_uid else _AGAIN_SECONDS
        return Decision(events=(Event("Normal", News.REMOVING_CHECKPOINTS, message),), recheck_seconds=min(left, again))
    try:
        manifest = cleanup_job(
            snapshot.job, checked_spec(snapshot.job), snapshot.settings, snapshot.now + timedelta(seconds=left), left
        )
    except ManifestError as error:
        return _give_up(snapshot, f"The job is not valid: {error}")
    message = f"Job {name} is removing {_folder(snapshot)}. The LoRARLJob disappears after that."
    event = Event("Normal", News.REMOVING_CHECKPOINTS, message)
    return Decision(events=(event,), actions=(Create(manifest),), recheck_seconds=left)


def _follow_cleanup(snapshot: Snapshot, cleanup: CleanupJob, left: float) -> Decision:
    if cleanup.complete:
        message = _said(snapshot) or f"deleted the checkpoints in {_folder(snapshot)}"
        event = Event("Normal", News.CHECKPOINTS_REMOVED, sentences(f"Job {cleanup.name} {message}"))
        return Decision(events=(event,), actions=(RemoveFinalizer(),))
    if cleanup.failed:
        return _give_up(snapshot, f"Job {cleanup.name} failed: {_said(snapshot) or cleanup.failed}")
    if cleanup.suspended:
        message = (
            f"Job {cleanup.name} is suspended, as Kueue does with Jobs until their queue has room. "
            "Until then nothing is removed."
        )
        event = Event("Normal", News.REMOVING_CHECKPOINTS, message)
        return Decision(events=(event,), recheck_seconds=min(left, _SELDOM_SECONDS))
    return _create_account(snapshot, cleanup, left)


def _said(snapshot: Snapshot) -> str:
    """What the newest pod of the clean-up said at its end; empty if it said nothing."""
    pods = [pod for pod in snapshot.observed.pods if pod.role == CLEANUP and pod.job_uid == snapshot.job.uid]
    newest = max(pods, key=lambda pod: pod.created_at, default=None)
    return next((redacted(one.message.strip()) for one in newest.containers if one.message), "") if newest else ""


def _create_account(snapshot: Snapshot, cleanup: CleanupJob, left: float) -> Decision:
    """Create the clean-up's ServiceAccount after its Job, which owns it. The Job needs it to create its pod."""
    try:
        cluster = checked_spec(snapshot.job).cluster
    except ManifestError as error:
        return _give_up(snapshot, f"The job is not valid: {error}")
    started = any(pod.role == CLEANUP and pod.job_uid == snapshot.job.uid for pod in snapshot.observed.pods)
    if started or cluster.service_account_name or not cluster.service_account_annotations:
        return Decision(recheck_seconds=left)
    account = cleanup_service_account(snapshot.job, cluster, cleanup)
    if refusal := snapshot.refusal(account):
        return Decision(recheck_seconds=min(left, snapshot.retry_seconds(refusal)))
    return Decision(prepare=(Apply(account),), recheck_seconds=left)


def _give_up(snapshot: Snapshot, why: str) -> Decision:
    message = sentences(f"{_folder(snapshot)} stays in the store", why, "Delete yourself what you do not need there.")
    event = Event("Warning", News.CHECKPOINTS_LEFT, message)
    cleanup = snapshot.observed.cleanup
    # From now on a new job of this name may write there. A clean-up that has not begun yet knows its deadline, but it
    # is better deleted.
    ours = cleanup is not None and cleanup.job_uid == snapshot.job.uid and not cleanup.failed
    deletion = (Delete("Job", cleanup.name, cleanup.uid),) if cleanup and ours else ()
    return Decision(events=(event,), actions=(RemoveFinalizer(), *deletion))


def _folder(snapshot: Snapshot) -> str:
    return f"{str(section(snapshot.spec, 'checkpoint').get('uri', '')).rstrip('/')}/{snapshot.job.name}"
