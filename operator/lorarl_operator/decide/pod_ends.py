"""Why one pod ended, and whose fault that is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lorarl_api.redaction import redacted
from lorarl_operator.decide.messages import sentences
from lorarl_operator.decide.models import Container, Pod
from lorarl_operator.decide.own_usage import own_usage
from lorarl_operator.decide.reasons import Counts, Ended, Foreign, foreign

_EVICTIONS = frozenset({"Evicted", "NodeLost", "Shutdown", "NodeShutdown", "Terminated", "Preempting"})
"""Reasons of a pod's phase Failed with which the kubelet ends a pod that it had accepted."""
_REFUSALS = frozenset({"UnexpectedAdmissionError", "TopologyAffinityError", "SMTAlignmentError", "NodeAffinity"})
"""Reasons of a pod's phase Failed with which the kubelet refuses a pod that the scheduler gave it.

There is also one for each resource that the node lacks: OutOfcpu, OutOfmemory, OutOfnvidia.com/gpu.
"""
NODE_DOWN = frozenset({"NodeLost", "DeletionByTaintManager"})
"""Reasons of a pod whose node does not respond, or has a NoExecute taint that says why."""
_KILLED = frozenset({137, 143})
"""Exit codes of SIGKILL and SIGTERM."""
_MOST_OUTPUT = 600
"""Characters of a container's last output. An Event has 1,024, and the cause is at the end of a traceback."""
_MORE_MEMORY = {
    "head": "Raise cluster.head.memory.",
    "worker": "Raise cluster.memoryPerNode, or lower trainer.tokensPerMicroBatch.",
    "engine": "Raise cluster.memoryPerNode, or the memory in cluster.podTemplateOverrides.engine.",
    "environment": "Raise cluster.environments.memory, or lower environment.concurrency.",
}
_CANNOT_START = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of a container that ended before it ran."""


class Kind(Enum):
    """How an attempt ended. PREEMPTED does not count against backoffLimit."""

    SUCCEEDED = "Succeeded"
    PREEMPTED = "Preempted"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an attempt.

    Attributes:
        reason: One CamelCase word, for programs.
        message: For people.
        faulty_node: The node whose fault it was, if it was a node's.
        lost_worker: Whether it is the loss of a worker's pod, which KubeRay replaces.
        exit_code: That of the container that ended; None if none did, or if that is not the cause.
        rule: The job's own rule that says what this counts as; empty without one.
        is_final: Whether that rule ends the job.
    """

    kind: Kind
    reason: Ended | Foreign
    message: str
    faulty_node: str = ""
    lost_worker: bool = False
    exit_code: int | None = None
    rule: str = ""
    is_final: bool = False


def ended(
    reason: Ended, message: str, faulty_node: str = "", *, lost_worker: bool = False, exit_code: int | None = None
) -> Outcome:
    """The end of an attempt for a reason of ours, which says what it counts as."""
    kind = Kind.PREEMPTED if reason.then == Counts.PREEMPTION else Kind.FAILED
    return Outcome(kind, reason, message, faulty_node, lost_worker, exit_code)


def taken(pod: Pod) -> Outcome | None:
    """The outcome if the cluster took this pod away, or never let it start; otherwise None.

    An eviction that the pod caused itself is a failure, like a container that exceeds its limit.
    """
    if found := _refused(pod):
        return found
    if pod.disruption_reason:
        reason, message = pod.disruption_reason, pod.disruption_message
    elif pod.phase == "Failed" and pod.reason in _EVICTIONS:
        reason, message = pod.reason, pod.message
    else:
        return None
    what = f"The {named(pod)} was removed: {message or reason}"
    if usage := own_usage(pod):
        return ended(usage[0], sentences(what, usage[1]))
    faulty = pod.node if reason in NODE_DOWN else ""
    return Outcome(Kind.PREEMPTED, foreign(reason), sentences(what), faulty, lost_worker=pod.role == "worker")


def _refused(pod: Pod) -> Outcome | None:
    """The kubelet refuses a pod before any of its containers starts."""
    if pod.phase != "Failed" or pod.disruption_reason:
        return None
    says_so = pod.message.startswith("Pod was rejected")
    if not (says_so or pod.reason in _REFUSALS or pod.reason.startswith("OutOf")):
        return None
    why = ": ".join(part for part in (pod.reason, redacted(pod.message)) if part)
    what = sentences(f"The node refused the {named(pod)}: {why}")
    return ended(Ended.POD_REFUSED, what, pod.node, lost_worker=pod.role == "worker")


def deleted(pod: Pod) -> Outcome:
    """The outcome of a pod that someone deleted."""
    what = f"The {named(pod)} was deleted, but not by lorarl."
    return ended(Ended.POD_DELETED, what, lost_worker=pod.role == "worker")


def failed_init(pod: Pod) -> Outcome | None:
    """The outcome if an init container failed, so that Ray's container never started; otherwise None."""
    container = failed_init_container(pod)
    if container is None:
        return None
    problem = f"Init container {container.name} of the {named(pod)} failed with exit code {container.exit_code}"
    if container.reason == "OOMKilled":
        problem = f"Init container {container.name} of the {named(pod)} used more memory than its limit"
    return ended(Ended.INIT_FAILED, sentences(problem, last_output(container)), exit_code=container.exit_code)


def failed_init_container(pod: Pod) -> Container | None:
    """The init container that failed, and not because its pod was taken away or deleted."""
    if pod.phase != "Failed" or taken(pod) or exited_container(pod):
        return None
    exited = [one for one in pod.containers if one.init and one.exit_code and not _by_deletion(pod, one)]
    # A sidecar among the init containers is killed when another one fails.
    return min(exited, key=lambda one: one.exit_code in _KILLED, default=None)


def exited_container(pod: Pod) -> Container | None:
    """Ray's container if it exited by itself, and not because its pod was taken away or deleted."""
    if taken(pod):
        return None
    exited = [one for one in pod.containers if one.name == f"ray-{pod.role}" and one.exit_code is not None]
    return next((one for one in exited if not _by_deletion(pod, one)), None)


def exited_worker(pod: Pod) -> Outcome | None:
    """The outcome of a worker whose Ray exited by itself; None if it did not, or had no memory or no program.

    Ray gives itself 30 s to start, which a busy machine exceeds. A replacement may start.
    """
    container = exited_container(pod)
    outcome = exit_outcome(pod, container) if container and pod.role == "worker" else None
    return outcome if outcome and outcome.reason == Ended.WORKER_EXITED else None


def exited_spare(pod: Pod) -> Outcome | None:
    """The outcome of an engine's or environment's pod whose container exited by itself for any cause; None if not.

    A replacement may start. A worker's end may be final instead, since the training needs it.
    """
    container = exited_container(pod) if pod.is_spare else None
    return exit_outcome(pod, container) if container else None


def exit_outcome(pod: Pod, container: Container) -> Outcome:
    """The outcome of a pod whose Ray container exited by itself."""
    if container.reason in _CANNOT_START:
        why = redacted(container.message.strip()) or "no reason was given"
        problem = f"Container {container.name} of the {named(pod)} cannot be created: {why}"
        hint = "Correct the image or cluster.podTemplateOverrides."
        return ended(Ended.CONTAINER_REFUSED, sentences(problem, hint))
    output = last_output(container)
    if container.reason == "OOMKilled":
        hint = _MORE_MEMORY[pod.role]
        problem = f"The {named(pod)} used more memory than its limit"
        return ended(Ended.OUT_OF_MEMORY, sentences(problem, hint, output), exit_code=container.exit_code)
    reason = Ended.HEAD_EXITED if pod.role == "head" else Ended.WORKER_EXITED
    problem = f"Ray's container of the {named(pod)} exited by itself with code {container.exit_code}"
    return ended(reason, sentences(problem, output), exit_code=container.exit_code)


def last_output(container: Container) -> str:
    """The end of a container's log, which the kubelet has put into its message; empty if there is none."""
    output = redacted(container.message.strip())
    if len(output) > _MOST_OUTPUT:
        first, _, others = output[-_MOST_OUTPUT:].partition("\n")
        output = f"... {others or first}"
    return f"Its last output: {output}" if output else ""


def _by_deletion(pod: Pod, container: Container) -> bool:
    asked, ended = pod.deletion_asked_at, container.ended_at
    if asked is None or container.reason == "OOMKilled":
        return False
    # Both times are whole seconds. Within the same second the exit code decides.
    return ended is None or ended > asked or (ended == asked and container.exit_code in _KILLED)


def named(pod: Pod) -> str:
    """A pod in a message, with its node."""
    return f"{pod.role} pod {pod.name}" + (f" on node {pod.node}" if pod.node else "")
