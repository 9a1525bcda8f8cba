"""Whether an attempt has ended, and whose fault that is: the job's (`attempts`) or the cluster's (`preemptions`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from lorarl_api.faults import redacted
from lorarl_operator.messages import sentences
from lorarl_operator.models import Container, Pod, RayJob
from lorarl_operator.settings import Settings

PREEMPTED_REASONS = frozenset({"Interrupted", "NodeLost"})
"""Reasons in the trainer's own report that are not the job's fault."""
_EVICTION_REASONS = frozenset(
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
"""Reasons of a pod's phase Failed with which the kubelet gives a pod up."""
_KILLED = frozenset({137, 143})
"""Exit codes of SIGKILL and SIGTERM."""
_CANNOT_START = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of a container that ended before it ran."""
_CLOCKS_DIFFER_SECONDS = 60.0
"""How far ahead of ours another machine's clock may be."""
_SUBMITTER = "ray-job-submitter"
"""KubeRay's container in the head's pod, which ends with the training (SidecarMode)."""
HEAD_GONE = "Ray head pod not found."
"""KubeRay's message if the head's pod disappears after the cluster was up."""


class Kind(Enum):
    """How an attempt ended. PREEMPTED does not count against backoffLimit."""

    SUCCEEDED = "Succeeded"
    PREEMPTED = "Preempted"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an attempt, with one word for programs and a message for people."""

    kind: Kind
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Something ended, but the cause is not known yet. Other watches may bring it within these seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """The trainer's own report of this attempt's failure (`status.failure`)."""

    reason: str
    message: str


def lost(ray_job: str, report: Report | None) -> Outcome:
    """The outcome of an attempt whose RayJob was deleted by someone else."""
    return _reported(report) or Outcome(
        Kind.PREEMPTED, "RayJobDeleted", f"RayJob {ray_job} was deleted, but not by lorarl."
    )


def attempt_outcome(
    ray_job: RayJob,
    pods: Sequence[Pod],
    departed: Sequence[Pod],
    report: Report | None,
    now: datetime,
    settings: Settings,
) -> Outcome | Unsettled | None:
    """How the attempt ended; None while it continues.

    Args:
        ray_job: The attempt's RayJob.
        pods: The attempt's pods that exist.
        departed: The attempt's deleted pods, in their last state.
        report: The trainer's report of this attempt.
        now: The time.
        settings: They say how long to wait for news.
    """
    if ray_job.deployment_status == "Complete" and ray_job.job_status == "SUCCEEDED":
        return Outcome(Kind.SUCCEEDED, "Succeeded", "Training finished.")
    if ray_job.deleted_at:
        return lost(ray_job.name, report)
    if ray_job.deployment_status in {"Complete", "Failed"}:
        return _of_ended_ray_job(ray_job, (*pods, *departed), report, now, settings)
    if ray_job.suspended or ray_job.deployment_status in {"Suspending", "Suspended"}:
        return None  # A queue takes its pods away. The RayJob resumes by itself.
    return (
        _of_live_ray_job(ray_job, (*pods, *departed), report, now, settings)
        or _two_heads(pods, now, settings)
        or _ended_before_ready(ray_job, pods, report, now, settings)
    )


def _of_ended_ray_job(
    ray_job: RayJob, pods: Sequence[Pod], report: Report | None, now: datetime, settings: Settings
) -> Outcome | Unsettled:
    """The cause behind a RayJob that KubeRay reports as failed.

    At this point KubeRay deletes the workers itself (and with a queue also the head). So a pod's deletion is only a
    cause if the pod is a head that KubeRay would keep.
    """
    before_end = [
        pod
        for pod in pods
        if not (pod.deletion_asked_at and ray_job.ended_at and pod.deletion_asked_at > ray_job.ended_at)
    ]
    if evicted := next((found for pod in before_end if (found := _eviction(pod))), None):
        return _reported(report, preempted_only=True) or evicted
    deleted_heads = [
        pod
        for pod in pods
        if pod.role == "head" and pod.deletion_asked_at and not ray_job.queue and not exited_container(pod)
    ]
    known = (
        _reported(report)
        or _own_exit([pod for pod in pods if not _cleaned_up(pod, ray_job)])
        or next((_deleted(pod) for pod in deleted_heads), None)
    )
    if known:
        return known
    if unsettled := _unsettled([ray_job.ended_at], now, settings):
        return unsettled
    if ray_job.message == HEAD_GONE:
        return Outcome(
            Kind.PREEMPTED, "HeadLost", "The head's pod is gone: its machine was lost or someone deleted it."
        )
    if ray_job.job_status == "STOPPED":
        return Outcome(Kind.FAILED, "Stopped", f"The Ray job of {ray_job.name} was stopped, but not by lorarl.")
    return Outcome(
        Kind.FAILED,
        ray_job.reason or "RayJobFailed",
        redacted(ray_job.message) or f"RayJob {ray_job.name} failed without a message.",
    )


def _cleaned_up(pod: Pod, ray_job: RayJob) -> bool:
    """Whether KubeRay's clean-up after the training ended this pod. Ray exits with 1 at SIGTERM, in the same second."""
    container, asked = exited_container(pod), pod.deletion_asked_at
    after_end = asked is not None and ray_job.ended_at is not None and asked > ray_job.ended_at
    return after_end and container is not None and container.reason != "OOMKilled" and container.ended_at == asked


def _of_live_ray_job(
    ray_job: RayJob, pods: Sequence[Pod], report: Report | None, now: datetime, settings: Settings
) -> Outcome | Unsettled | None:
    """A lost pod ends the attempt, because the workers train together.

    KubeRay would create a new pod, which the others do not wait for.
    """
    was_up = ray_job.deployment_status == "Running"
    if was_up and (evicted := next((found for pod in pods if (found := _eviction(pod))), None)):
        return evicted
    if own := _own_exit(pods):
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
        head_lost = was_up and any(pod.role == "head" and not pod.ready and not exited_container(pod) for pod in pods)
        if head_lost and own.reason == "WorkerExited":
            return interrupted or Outcome(
                Kind.PREEMPTED, "HeadLost", f"The head's machine does not respond. {own.message}"
            )
        return interrupted or own
    deleted = [pod for pod in pods if pod.deletion_asked_at and was_up]
    if not deleted:
        return None
    # KubeRay deletes pods too: when a queue suspends the RayJob, or when it has ended. That news comes on another
    # watch.
    if unsettled := _unsettled([pod.deletion_asked_at for pod in deleted], now, settings):
        return unsettled
    return _reported(report, preempted_only=True) or _deleted(deleted[0])


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
    return Outcome(Kind.PREEMPTED, "TwoHeads", f"KubeRay created two head pods, {names}, and then handles neither.")


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
    ended = next((one for one in submitters if one.exit_code is not None), None)
    if ended is None:
        return None
    if unsettled := _unsettled([ended.ended_at], now, settings):
        return unsettled
    if known := _reported(report):
        return known
    if ended.exit_code == 0:
        return Outcome(Kind.SUCCEEDED, "Succeeded", "Training finished.")
    return Outcome(
        Kind.FAILED,
        "SubmissionFailed",
        sentences(f"The training ended with exit code {ended.exit_code} at its start", _last_output(ended)),
    )


def _last_output(container: Container) -> str:
    """The end of a container's log, which the kubelet has put into its message; empty if there is none."""
    output = redacted(container.message.strip())
    return f"Its last output: {output}" if output else ""


def _reported(report: Report | None, *, preempted_only: bool = False) -> Outcome | None:
    if report is None:
        return None
    kind = Kind.PREEMPTED if report.reason in PREEMPTED_REASONS else Kind.FAILED
    return None if preempted_only and kind is Kind.FAILED else Outcome(kind, report.reason, report.message)


def _eviction(pod: Pod) -> Outcome | None:
    """The outcome if the cluster took this pod away."""
    if pod.disruption_reason:
        reason, message = pod.disruption_reason, pod.disruption_message
    elif pod.phase == "Failed" and pod.reason in _EVICTION_REASONS:
        reason, message = pod.reason, pod.message
    else:
        return None
    return Outcome(Kind.PREEMPTED, reason, sentences(f"The {_named(pod)} was removed: {message or reason}"))


def _deleted(pod: Pod) -> Outcome:
    return Outcome(Kind.PREEMPTED, "PodDeleted", f"The {_named(pod)} was deleted, but not by lorarl.")


def _own_exit(pods: Sequence[Pod]) -> Outcome | None:
    """The first container that exited by itself. The head comes before the workers, which exit with it."""
    for pod in sorted(pods, key=lambda pod: pod.role != "head"):
        if container := exited_container(pod):
            return _exit_outcome(pod, container)
    return None


def _exit_outcome(pod: Pod, container: Container) -> Outcome:
    if container.reason in _CANNOT_START:
        why = redacted(container.message.strip()) or "no reason was given"
        problem = f"Container {container.name} of the {_named(pod)} cannot be created: {why}"
        hint = "Correct the image or cluster.podTemplateOverrides."
        return Outcome(Kind.FAILED, "ContainerRefused", sentences(problem, hint))
    output = _last_output(container)
    if container.reason == "OOMKilled":
        hint = "Raise cluster.memoryPerNode, or lower trainer.tokensPerMicroBatch."
        if pod.role == "head":
            hint = "Raise cluster.head.memory."
        return Outcome(
            Kind.FAILED, "OutOfMemory", sentences(f"The {_named(pod)} used more memory than its limit", hint, output)
        )
    reason = "HeadExited" if pod.role == "head" else "WorkerExited"
    problem = f"Ray's container of the {_named(pod)} exited by itself with code {container.exit_code}"
    return Outcome(Kind.FAILED, reason, sentences(problem, output))


def exited_container(pod: Pod) -> Container | None:
    """Ray's container if it exited by itself, and not because its pod was taken away or deleted."""
    if _eviction(pod):
        return None
    ended = [one for one in pod.containers if one.name == f"ray-{pod.role}" and one.exit_code is not None]
    return next((one for one in ended if not _by_deletion(pod, one)), None)


def _by_deletion(pod: Pod, container: Container) -> bool:
    asked, ended = pod.deletion_asked_at, container.ended_at
    if asked is None or container.reason == "OOMKilled":
        return False
    # Both times are whole seconds. Within the same second the exit code decides.
    return ended is None or ended > asked or (ended == asked and container.exit_code in _KILLED)


def _named(pod: Pod) -> str:
    return f"{pod.role} pod {pod.name}" + (f" on node {pod.node}" if pod.node else "")
