"""Whether an attempt has ended, and whose fault that is: the job's (`attempts`) or the cluster's (`preemptions`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from lorarl_api.redaction import redacted
from lorarl_operator.decide.early_losses import Loss, too_many
from lorarl_operator.decide.messages import sentences
from lorarl_operator.decide.models import RETRYING, Pod, RayJob
from lorarl_operator.decide.pod_ends import (
    Kind,
    Outcome,
    deleted,
    ended,
    exit_outcome,
    exited_container,
    exited_spare,
    exited_worker,
    last_output,
    named,
    taken,
)
from lorarl_operator.decide.reasons import Ended, Foreign, foreign
from lorarl_operator.decide.settings import Settings

PREEMPTED_REASONS: frozenset[str] = frozenset({Ended.INTERRUPTED, Ended.NODE_LOST})
"""Reasons in the trainer's own report that are not the job's fault."""
_CLOCKS_DIFFER_SECONDS = 60.0
"""How far ahead of ours another machine's clock may be."""
_SUBMITTER = "ray-job-submitter"
"""KubeRay's container in the head's pod, which ends with the training (SidecarMode)."""
HEAD_GONE = "Ray head pod not found."
"""KubeRay's message if the head's pod disappears after the cluster was up."""


_SUCCEEDED = Outcome(Kind.SUCCEEDED, Foreign("Succeeded"), "Training finished.")


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Something ended, but the cause is not known yet. Other watches may bring it within these seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """The trainer's own report of this attempt's failure (`status.failure`).

    Attributes:
        is_shown: Whether the cluster shows the loss that the report speaks of. The job's own code may write any report.
    """

    reason: Foreign
    message: str
    is_shown: bool = True

    @property
    def is_doubtful(self) -> bool:
        """Whether it reports a loss that nothing shows."""
        return self.reason in PREEMPTED_REASONS and not self.is_shown


def shows_a_loss(ray_job: RayJob, pods: Iterable[Pod], running_since: datetime | None) -> bool:
    """Whether the cluster took something from an attempt before it ended, or KubeRay has replaced a pod of it.

    Args:
        ray_job: Its RayJob.
        pods: Its pods, existing and deleted.
        running_since: Since when the attempt runs; None if it does not. KubeRay creates later pods as replacements,
            also for a spare pod that ended by itself while the training continued, which shows nothing.
    """
    if ray_job.deleted_at or ray_job.message == HEAD_GONE:
        return True
    return any(
        pod.silent
        or taken(pod)
        or (pod.deletion_asked_at and not (ray_job.ended_at and pod.deletion_asked_at >= ray_job.ended_at))
        or (running_since and pod.created_at > running_since and not pod.is_spare)
        for pod in pods
        if not exited_spare(pod)
    )


def lost(ray_job: str, report: Report | None) -> Outcome:
    """The outcome of an attempt whose RayJob was deleted by someone else."""
    return _reported(report) or ended(Ended.RAY_JOB_DELETED, f"RayJob {ray_job} was deleted, but not by lorarl.")


def attempt_outcome(
    ray_job: RayJob,
    pods: Sequence[Pod],
    departed: Sequence[Pod],
    lost_early: Sequence[Loss],
    report: Report | None,
    now: datetime,
    settings: Settings,
) -> Outcome | Unsettled | None:
    """How the attempt ended; None while it continues."""
    if ray_job.deployment_status == "Complete" and ray_job.job_status == "SUCCEEDED":
        return _SUCCEEDED
    if ray_job.deleted_at:
        return lost(ray_job.name, report)
    if ray_job.deployment_status in {"Complete", "Failed"}:
        return _of_ended_ray_job(ray_job, (*pods, *departed), report, now, settings)
    if ray_job.suspended or ray_job.deployment_status in {"Suspending", "Suspended", RETRYING}:
        return None  # A queue, or KubeRay itself, takes its pods away. The RayJob resumes by itself.
    return (
        _of_live_ray_job(ray_job, (*pods, *departed), report, now, settings)
        or _two_heads(pods, now, settings)
        or _ended_before_ready(ray_job, pods, report, now, settings)
        or too_many(lost_early)
    )


def _of_ended_ray_job(
    ray_job: RayJob, pods: Sequence[Pod], report: Report | None, now: datetime, settings: Settings
) -> Outcome | Unsettled:
    """The cause behind a RayJob that KubeRay reports as failed.

    At this point KubeRay deletes the workers itself (and with a queue also the head). So a pod's deletion is only a
    cause if the pod is a head that KubeRay would keep, or that was deleted before.
    """
    before_end = [
        pod
        for pod in pods
        if not (pod.deletion_asked_at and ray_job.ended_at and pod.deletion_asked_at > ray_job.ended_at)
    ]
    if evicted := next((found for pod in before_end if (found := taken(pod))), None):
        return evicted if evicted.kind is Kind.FAILED else _reported(report, preempted_only=True) or evicted
    deleted_heads = [
        pod
        for pod in pods
        if pod.role == "head"
        and (asked := pod.deletion_asked_at)
        and (not ray_job.queue or (ray_job.ended_at and asked < ray_job.ended_at))
        and not exited_container(pod)
    ]
    if report and report.is_doubtful and (unsettled := _unsettled([ray_job.ended_at], now, settings)):
        return unsettled
    known = (
        _reported(report)
        or _own_exit([pod for pod in pods if not _cleaned_up(pod, ray_job)])
        or next((deleted(pod) for pod in deleted_heads), None)
    )
    if known:
        return known
    if unsettled := _unsettled([ray_job.ended_at], now, settings):
        return unsettled
    if ray_job.message == HEAD_GONE:
        return ended(Ended.HEAD_LOST, "The head's pod is gone: its machine was lost or someone deleted it.")
    if ray_job.job_status == "STOPPED":
        return ended(Ended.STOPPED, f"The Ray job of {ray_job.name} was stopped, but not by lorarl.")
    message = redacted(ray_job.message) or f"RayJob {ray_job.name} failed without a message."
    if not ray_job.reason:
        return ended(Ended.RAY_JOB_FAILED, message)
    return Outcome(Kind.FAILED, foreign(ray_job.reason), message)


def _cleaned_up(pod: Pod, ray_job: RayJob) -> bool:
    """Whether KubeRay's clean-up after the training ended this pod. Ray exits with 1 at SIGTERM, in the same second."""
    container, asked = exited_container(pod), pod.deletion_asked_at
    after_end = asked is not None and ray_job.ended_at is not None and asked > ray_job.ended_at
    return after_end and container is not None and container.reason != "OOMKilled" and container.ended_at == asked


def _of_live_ray_job(
    ray_job: RayJob, pods: Sequence[Pod], report: Report | None, now: datetime, settings: Settings
) -> Outcome | Unsettled | None:
    """The loss of a pod, or a container that exited by itself.

    The workers train together, so without all of them none trains. `attempt_recovery.py` decides which losses end the
    attempt.
    """
    was_up = ray_job.deployment_status == "Running"
    heads_first = sorted(pods, key=lambda pod: pod.role != "head")  # an attempt replaces workers, but no head
    if was_up and (evicted := next((found for pod in heads_first if (found := taken(pod))), None)):
        return evicted
    if own := _own_exit([pod for pod in pods if was_up or not exited_worker(pod)]):
        # Ray exits with 1 at SIGTERM. An exit in the second of the deletion may be KubeRay's clean-up after the
        # training.
        doubtful = [
            pod.deletion_asked_at
            for pod in pods
            if was_up and (container := exited_container(pod)) and container.reason != "OOMKilled"
        ]
        if unsettled := _unsettled(doubtful, now, settings):
            return unsettled
        interrupted = _reported(report, preempted_only=True)
        lost_head = (pod for pod in pods if pod.role == "head" and not pod.ready and not exited_container(pod))
        if was_up and own.reason == Ended.WORKER_EXITED and (head := next(lost_head, None)):
            message = f"The machine of the {named(head)} does not respond. {own.message}"
            return interrupted or ended(Ended.HEAD_LOST, message, faulty_node=head.node)
        return interrupted or own
    gone = [pod for pod in pods if pod.deletion_asked_at and was_up]
    if not gone:
        return None
    # KubeRay deletes pods too: when a queue suspends the RayJob, or when it has ended. That news comes on another
    # watch.
    if unsettled := _unsettled([pod.deletion_asked_at for pod in gone], now, settings):
        return unsettled
    return _reported(report, preempted_only=True) or deleted(gone[0])


def _unsettled(times: Iterable[datetime | None], now: datetime, settings: Settings) -> Unsettled | None:
    """Wait for news of what happened at these times; None if that is long enough ago, or if the times are unknown.

    A time in the near future is that of a machine whose clock is ahead of ours. One far ahead is not waited for.
    """
    age = max(((now - time).total_seconds() for time in times if time), default=settings.settle_seconds)
    waited = age if age < -_CLOCKS_DIFFER_SECONDS else max(age, 0.0)
    return Unsettled(settings.settle_seconds - waited) if 0 <= waited < settings.settle_seconds else None


def _two_heads(pods: Sequence[Pod], now: datetime, settings: Settings) -> Outcome | Unsettled | None:
    """A cluster with two head pods, which a busy KubeRay creates. From then on it handles neither, forever."""
    heads = sorted(
        (
            pod
            for pod in pods
            if pod.role == "head" and not pod.deletion_asked_at and pod.phase in {"Pending", "Running"}
        ),
        key=lambda pod: pod.created_at,
    )
    if len(heads) < 2:
        return None
    if unsettled := _unsettled([heads[-1].created_at], now, settings):
        return unsettled
    names = " and ".join(pod.name for pod in heads)
    return ended(Ended.TWO_HEADS, f"KubeRay created two head pods, {names}, and handles neither from then on.")


def _ended_before_ready(
    ray_job: RayJob, pods: Sequence[Pod], report: Report | None, now: datetime, settings: Settings
) -> Outcome | Unsettled | None:
    """A training that ended before KubeRay saw its cluster ready, for example with a wrong key for the store.

    Without its submitter the head's pod is no longer ready, and KubeRay would wait for that forever.
    """
    if ray_job.deployment_status == "Running":
        return None
    heads = [pod for pod in pods if pod.role == "head" and not pod.deletion_asked_at]
    submitters = (one for pod in heads for one in pod.containers if one.name == _SUBMITTER)
    submitter = next((one for one in submitters if one.exit_code is not None), None)
    if submitter is None:
        return None
    if unsettled := _unsettled([submitter.ended_at], now, settings):
        return unsettled
    if known := _reported(report):
        return known
    if submitter.exit_code == 0:
        return _SUCCEEDED
    return ended(
        Ended.SUBMISSION_FAILED,
        sentences(f"The training ended with exit code {submitter.exit_code} at its start", last_output(submitter)),
        exit_code=submitter.exit_code,
    )


def _reported(report: Report | None, *, preempted_only: bool = False) -> Outcome | None:
    if report is None:
        return None
    if report.is_doubtful and not preempted_only:
        problem = "The training reports that the cluster interrupted it, but nothing in the cluster shows that"
        return Outcome(Kind.FAILED, report.reason, sentences(problem, report.message))
    kind = Kind.PREEMPTED if report.reason in PREEMPTED_REASONS and report.is_shown else Kind.FAILED
    return None if preempted_only and kind is Kind.FAILED else Outcome(kind, report.reason, report.message)


def _own_exit(pods: Sequence[Pod]) -> Outcome | None:
    """The first container that exited by itself. The head comes before the workers, which exit with it."""
    for pod in sorted(pods, key=lambda pod: pod.role != "head"):
        if container := exited_container(pod):
            return exit_outcome(pod, container)
    return None
