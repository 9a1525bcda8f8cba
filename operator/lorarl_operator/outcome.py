"""Whether an attempt has ended, and by whose fault: the job's own (`attempts`), or the machines' (`preemptions`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from lorarl_api.faults import redacted
from lorarl_operator.models import Container, Pod, RayJob
from lorarl_operator.settings import Settings

PREEMPTED_REASONS = frozenset({"Interrupted", "NodeLost"})
"""Reasons of the trainer's own report that are nobody's fault."""
_TAKEN = frozenset(
    {
        "Evicted",
        "NodeLost",
        "Shutdown",
        "NodeShutdown",
        "Terminated",
        "Preempting",
        "UnexpectedAdmissionError",
        "NodeAffinity",
    }
)
"""Reasons of a pod's phase Failed by which kubelet gives a pod up."""
_KILLED = frozenset({137, 143})
"""Exit codes of SIGKILL and SIGTERM."""
_CANNOT_START = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of a container that ended without having been."""
_SUBMITTER = "ray-job-submitter"
"""KubeRay's container in the head's pod, which ends with the training (SidecarMode)."""
HEAD_GONE = "Ray head pod not found."
"""KubeRay's message where the head's pod is gone after the cluster was up."""


class Kind(Enum):
    """How an attempt ended: PREEMPTED is not counted against backoffLimit."""

    SUCCEEDED = "Succeeded"
    PREEMPTED = "Preempted"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an attempt, with one word for programs and a sentence for people."""

    kind: Kind
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Something ended, but why is not known yet: other watches may bring it within these seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """What the trainer itself said of the failure of this attempt (`status.failure`)."""

    reason: str
    message: str


def lost(ray_job: str, report: Report | None) -> Outcome:
    """The end of an attempt whose RayJob somebody deleted."""
    return _reported(report) or Outcome(Kind.PREEMPTED, "RayJobDeleted", f"RayJob {ray_job} was deleted by somebody")


def ending(
    ray_job: RayJob,
    pods: Sequence[Pod],
    departed: Sequence[Pod],
    report: Report | None,
    now: datetime,
    settings: Settings,
) -> Outcome | Unsettled | None:
    """How the attempt ended; None while it goes on.

    Args:
        ray_job: The attempt's RayJob.
        pods: The attempt's pods that are there.
        departed: Those that went, as they were at the end.
        report: The trainer's word on this attempt.
        now: The time.
        settings: For how long to wait for news.
    """
    if ray_job.deployment_status == "Complete" and ray_job.job_status == "SUCCEEDED":
        return Outcome(Kind.SUCCEEDED, "Succeeded", "training has ended")
    if ray_job.deleted_at:
        return lost(ray_job.name, report)
    if ray_job.deployment_status in {"Complete", "Failed"}:
        return _of_ended_ray_job(ray_job, (*pods, *departed), report, now, settings)
    if ray_job.suspended or ray_job.deployment_status in {"Suspending", "Suspended"}:
        return None  # a queue takes its pods away: it goes on by itself
    return (
        _of_live_ray_job(ray_job, (*pods, *departed), report, now, settings)
        or _two_heads(pods, now, settings)
        or _over_too_soon(ray_job, pods, report, now, settings)
    )


def _of_ended_ray_job(
    ray_job: RayJob, pods: Sequence[Pod], report: Report | None, now: datetime, settings: Settings
) -> Outcome | Unsettled:
    """The cause behind a RayJob that KubeRay calls failed.

    KubeRay's own clean-up deletes workers now (and with a queue the head too), so a deletion says nothing here but of a head that stays.
    """
    before = [
        pod
        for pod in pods
        if not (pod.deletion_asked_at and ray_job.ended_at and pod.deletion_asked_at > ray_job.ended_at)
    ]
    if taken := next((found for pod in before if (found := _taken(pod))), None):
        return _reported(report, preempted_only=True) or taken
    head_deleted = [
        pod
        for pod in pods
        if pod.role == "head" and pod.deletion_asked_at and not ray_job.queue and not exited_container(pod)
    ]
    known = (
        _reported(report)
        or _own_exit([pod for pod in pods if not _cleaned_up(pod, ray_job)])
        or next((_deleted(pod) for pod in head_deleted), None)
    )
    if known:
        return known
    if wait := _until_settled([ray_job.ended_at], now, settings):
        return wait
    if ray_job.message == HEAD_GONE:
        return Outcome(Kind.PREEMPTED, "HeadLost", "the head's pod is gone, with its machine or by somebody's hand")
    if ray_job.job_status == "STOPPED":
        return Outcome(Kind.FAILED, "Stopped", f"the Ray job of {ray_job.name} was stopped by somebody")
    return Outcome(
        Kind.FAILED,
        ray_job.reason or "RayJobFailed",
        redacted(ray_job.message) or f"RayJob {ray_job.name} failed without a word",
    )


def _cleaned_up(pod: Pod, ray_job: RayJob) -> bool:
    """Whether the pod's end in the second of its deletion is KubeRay's doing, after the training: Ray ends with 1 at SIGTERM."""
    end, asked = exited_container(pod), pod.deletion_asked_at
    after = asked is not None and ray_job.ended_at is not None and asked > ray_job.ended_at
    return after and end is not None and end.reason != "OOMKilled" and end.ended_at == asked


def _of_live_ray_job(
    ray_job: RayJob, pods: Sequence[Pod], report: Report | None, now: datetime, settings: Settings
) -> Outcome | Unsettled | None:
    """A pod that is lost ends the attempt: the workers train as one. KubeRay would make a new pod, which nobody waits for."""
    been_up = ray_job.deployment_status == "Running"
    if been_up and (taken := next((found for pod in pods if (found := _taken(pod))), None)):
        return taken
    if own := _own_exit(pods):
        # Ray ends with 1 at SIGTERM: in the second of the deletion this may as well be KubeRay's clean-up after the end of the training.
        doubts = [
            pod.deletion_asked_at
            for pod in pods
            if been_up and (end := exited_container(pod)) and end.reason != "OOMKilled"
        ]
        if wait := _until_settled(doubts, now, settings):
            return wait
        interrupted = _reported(report, preempted_only=True)
        head_lost = been_up and any(pod.role == "head" and not pod.ready and not exited_container(pod) for pod in pods)
        if head_lost and own.reason == "WorkerExited":
            return interrupted or Outcome(
                Kind.PREEMPTED, "HeadLost", f"the head's machine does not answer; {own.message}"
            )
        return interrupted or own
    deleted = [pod for pod in pods if pod.deletion_asked_at and been_up]
    if not deleted:
        return None
    # KubeRay deletes pods too, when a queue suspends the RayJob or when it has ended: that news comes on another watch.
    if wait := _until_settled([pod.deletion_asked_at for pod in deleted], now, settings):
        return wait
    return _reported(report, preempted_only=True) or _deleted(deleted[0])


def _until_settled(times: Iterable[datetime | None], now: datetime, settings: Settings) -> Unsettled | None:
    """Wait for news that may still come of what happened; None where that is long enough ago, or where it is not known when."""
    age = max(((now - time).total_seconds() for time in times if time), default=settings.settle_seconds)
    return Unsettled(settings.settle_seconds - age) if 0 <= age < settings.settle_seconds else None


def _two_heads(pods: Sequence[Pod], now: datetime, settings: Settings) -> Outcome | Unsettled | None:
    """A cluster with two head pods, which KubeRay makes when it is busy: from then on it works on neither, and would for ever."""
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
    if wait := _until_settled([heads[-1].created_at], now, settings):
        return wait
    names = " and ".join(pod.name for pod in heads)
    return Outcome(Kind.PREEMPTED, "TwoHeads", f"KubeRay made two head pods, {names}, and then works on neither")


def _over_too_soon(
    ray_job: RayJob, pods: Sequence[Pod], report: Report | None, now: datetime, settings: Settings
) -> Outcome | Unsettled | None:
    """A training that ended before KubeRay saw its cluster ready, as with a wrong key to the store.

    Without its submitter the head's pod is not ready any more, and KubeRay would wait for that for ever.
    """
    if ray_job.deployment_status == "Running":
        return None
    heads = [pod for pod in pods if pod.role == "head" and not pod.deletion_asked_at]
    over = next((c for pod in heads for c in pod.containers if c.name == _SUBMITTER and c.exit_code is not None), None)
    if over is None:
        return None
    if wait := _until_settled([over.ended_at], now, settings):
        return wait
    if known := _reported(report):
        return known
    if over.exit_code == 0:
        return Outcome(Kind.SUCCEEDED, "Succeeded", "training has ended")
    said = redacted(over.message.strip()) or "nothing"
    return Outcome(
        Kind.FAILED,
        "SubmissionFailed",
        f"the training ended with exit code {over.exit_code} at its start; it said: {said}",
    )


def _reported(report: Report | None, *, preempted_only: bool = False) -> Outcome | None:
    if report is None:
        return None
    kind = Kind.PREEMPTED if report.reason in PREEMPTED_REASONS else Kind.FAILED
    return None if preempted_only and kind is Kind.FAILED else Outcome(kind, report.reason, report.message)


def _taken(pod: Pod) -> Outcome | None:
    """A pod that the cluster took away."""
    if pod.disruption_reason:
        return Outcome(Kind.PREEMPTED, pod.disruption_reason, f"{_named(pod)} was taken away: {pod.disruption_message}")
    if pod.phase == "Failed" and pod.reason in _TAKEN:
        return Outcome(Kind.PREEMPTED, pod.reason, f"{_named(pod)} was taken away: {pod.message or pod.reason}")
    return None


def _deleted(pod: Pod) -> Outcome:
    return Outcome(Kind.PREEMPTED, "PodDeleted", f"{_named(pod)} was deleted by somebody")


def _own_exit(pods: Sequence[Pod]) -> Outcome | None:
    """The first container that ended by itself; the head's before the workers', which end with it."""
    for pod in sorted(pods, key=lambda pod: pod.role != "head"):
        container = exited_container(pod)
        if container is None:
            continue
        said = redacted(container.message.strip())
        tail = f"; it said: {said}" if said else ""
        if container.reason in _CANNOT_START:
            hint = "correct the image or cluster.podTemplateOverrides"
            return Outcome(
                Kind.FAILED,
                "ContainerRefused",
                f"container {container.name} of {_named(pod)} cannot be made: {said or 'no word why'}; {hint}",
            )
        if container.reason == "OOMKilled":
            field = "cluster.head.memory" if pod.role == "head" else "cluster.memoryPerNode"
            hint = f"raise {field}" + ("" if pod.role == "head" else ", or lower trainer.tokensPerMicroBatch")
            return Outcome(Kind.FAILED, "OutOfMemory", f"{_named(pod)} used more memory than its limit; {hint}{tail}")
        reason = "HeadExited" if pod.role == "head" else "WorkerExited"
        return Outcome(
            Kind.FAILED,
            reason,
            f"Ray's container of {_named(pod)} ended by itself with exit code {container.exit_code}{tail}",
        )
    return None


def exited_container(pod: Pod) -> Container | None:
    """Ray's container, where it ended by itself and not because its pod was taken away or deleted."""
    if _taken(pod):
        return None
    ended = [c for c in pod.containers if c.name == f"ray-{pod.role}" and c.exit_code is not None]
    return next((c for c in ended if not _by_deletion(pod, c)), None)


def _by_deletion(pod: Pod, container: Container) -> bool:
    asked, ended = pod.deletion_asked_at, container.ended_at
    if asked is None or container.reason == "OOMKilled":
        return False
    # Both times are whole seconds; within the same one the exit code tells.
    return ended is None or ended > asked or (ended == asked and container.exit_code in _KILLED)


def _named(pod: Pod) -> str:
    return f"{pod.role} pod {pod.name}" + (f" on node {pod.node}" if pod.node else "")
