"""Pods of separate engines while the attempt runs: the loss of one interrupts nothing, but is reported."""

from __future__ import annotations

from datetime import timedelta

from lorarl_operator.decide.blockers import not_created, of_pod
from lorarl_operator.decide.decision import DeletePod
from lorarl_operator.decide.early_losses import losses
from lorarl_operator.decide.messages import sentences
from lorarl_operator.decide.models import Pod
from lorarl_operator.decide.pod_ends import Kind
from lorarl_operator.decide.recovery import lingering
from lorarl_operator.decide.snapshot import Snapshot


def lingering_engines(snapshot: Snapshot) -> tuple[list[DeletePod], float | None]:
    """The engines' pods that only their deletion lets KubeRay replace, and seconds until there may be another one."""
    leaving = [pod for pod in snapshot.attempt_pods if pod.role == "engine" and pod.gone_by]
    patience = timedelta(seconds=snapshot.settings.pods_gone_seconds)
    gone = lingering(leaving, "engine", snapshot.now, patience)
    return gone, snapshot.until_gone(leaving) if leaving else None


def missing_engines(snapshot: Snapshot) -> tuple[str, float | None]:
    """Why engines have had no place for a while; empty if all have one. And seconds until another one is missing."""
    waiting = [pod for pod in snapshot.attempt_pods if _waits(pod)]
    ages = [(snapshot.now - pod.created_at).total_seconds() for pod in waiting]
    patience = snapshot.settings.stuck_seconds
    soon = min((patience - age for age in ages if age < patience), default=None)
    missing = [pod for pod, age in zip(waiting, ages, strict=True) if age >= patience]
    # KubeRay says at once that it may not create a pod. Without that, it is about to.
    refused = not_created(snapshot.job, snapshot.clusters)
    without = max(0, snapshot.engines - sum(map(_is_there, snapshot.attempt_pods))) if refused else 0
    if not (count := len(missing) + without):
        return "", soon
    has = "has no pod that runs" if count == 1 else "have no pods that run"
    found = (of_pod(snapshot.job, pod, snapshot.now) for pod in missing)
    why = next((blocker.message for blocker in (refused if without else None, *found) if blocker), "")
    told = f"{count} of {snapshot.engines} engines {has}"
    return (f"{told}: {why}" if why else f"{told}."), soon


def _is_there(pod: Pod) -> bool:
    return pod.role == "engine" and pod.phase in {"Pending", "Running"} and not pod.deletion_asked_at


def _waits(pod: Pod) -> bool:
    return pod.role == "engine" and pod.phase == "Pending" and not pod.deletion_asked_at


def failed_engine(snapshot: Snapshot) -> str:
    """How the newest engine's pod failed that its node did not take away, as by its memory; empty if none has."""
    engines = [pod for pod in (*snapshot.all_departed, *snapshot.attempt_pods) if pod.role == "engine"]
    failed = [loss.outcome.message for loss in losses(engines) if loss.outcome.kind is Kind.FAILED]
    return sentences(failed[-1], "KubeRay replaces the pod") if failed else ""
