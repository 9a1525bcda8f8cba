"""Pods of separate engines and environments while the attempt runs: a loss interrupts nothing, but is reported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from lorarl_operator.decide.blockers import not_created, of_pod
from lorarl_operator.decide.decision import DeletePod
from lorarl_operator.decide.early_losses import losses
from lorarl_operator.decide.messages import sentences
from lorarl_operator.decide.models import Pod
from lorarl_operator.decide.news_reasons import News
from lorarl_operator.decide.pod_ends import Kind
from lorarl_operator.decide.recovery import lingering
from lorarl_operator.decide.snapshot import Snapshot
from lorarl_operator.decide.valid_spec import section, whole_number


@dataclass(frozen=True)
class _Group:
    """The pods of one kind.

    Attributes:
        role: theirs.
        of_all: `{} of {} engines`, without its verb: how many of how many have no pod.
        missing, failed: what is said if some have no pod, and if a pod ended by itself.
    """

    role: str
    of_all: str
    missing: News
    failed: News


_GROUPS = (
    _Group("engine", "{} of {} engines", News.ENGINE_MISSING, News.ENGINE_FAILED),
    _Group("environment", "{} of {} places of cluster.environments", News.ENVIRONMENT_MISSING, News.ENVIRONMENT_FAILED),
)


def spares_asked(snapshot: Snapshot) -> dict[str, int]:
    """Pods of each kind that a job asks for, by their role, by a spec that may not be valid."""
    cluster = section(snapshot.spec, "cluster")
    replicas = whole_number(section(cluster, "environments").get("replicas"), 1) or 0
    return {"engine": snapshot.engines, "environment": 0 if cluster.get("environments") is None else replicas}


def lingering_spares(snapshot: Snapshot) -> tuple[list[DeletePod], float | None]:
    """The pods that only their deletion lets KubeRay replace, and seconds until there may be another one."""
    leaving = [pod for pod in snapshot.attempt_pods if pod.is_spare and pod.gone_by]
    patience = timedelta(seconds=snapshot.settings.pods_gone_seconds)
    gone = [each for group in _GROUPS for each in lingering(leaving, group.role, snapshot.now, patience)]
    return gone, snapshot.until_gone(leaving) if leaving else None


def spares_news(snapshot: Snapshot) -> Iterator[tuple[News, str]]:
    """Yield what to say of the pods of each kind: which are missing, and how one failed; empty texts if all is well."""
    for group in _GROUPS:
        yield group.missing, _missing(snapshot, group)
        yield group.failed, _failed(snapshot, group)


def until_missing(snapshot: Snapshot) -> float | None:
    """Seconds until a pod that waits for a place counts as missing; None if none will."""
    patience = snapshot.settings.stuck_seconds
    ages = [_age(snapshot, pod) for group in _GROUPS for pod in _of(snapshot, group, "Pending")]
    return min((patience - age for age in ages if age < patience), default=None)


def _missing(snapshot: Snapshot, group: _Group) -> str:
    """Why some have had no place for a while; empty if all have one."""
    patience = snapshot.settings.stuck_seconds
    missing = [pod for pod in _of(snapshot, group, "Pending") if _age(snapshot, pod) >= patience]
    asked = spares_asked(snapshot)[group.role]
    # KubeRay says at once that it may not create a pod. Without that, it is about to.
    refused = not_created(snapshot.job, snapshot.clusters)
    without = max(0, asked - len(_of(snapshot, group, "Pending", "Running"))) if refused else 0
    if not (count := len(missing) + without):
        return ""
    has = "has no pod that runs" if count == 1 else "have no pods that run"
    found = (of_pod(snapshot.job, pod, snapshot.now) for pod in missing)
    why = next((blocker.message for blocker in (refused if without else None, *found) if blocker), "")
    told = f"{group.of_all.format(count, asked)} {has}"
    return f"{told}: {why}" if why else f"{told}."


def _of(snapshot: Snapshot, group: _Group, *phases: str) -> list[Pod]:
    return [
        pod
        for pod in snapshot.attempt_pods
        if pod.role == group.role and pod.phase in phases and not pod.deletion_asked_at
    ]


def _age(snapshot: Snapshot, pod: Pod) -> float:
    return (snapshot.now - pod.created_at).total_seconds()


def _failed(snapshot: Snapshot, group: _Group) -> str:
    """How the newest pod failed that its node did not take away, as by its memory; empty if none has."""
    pods = [pod for pod in (*snapshot.all_departed, *snapshot.attempt_pods) if pod.role == group.role]
    failed = [loss.outcome.message for loss in losses(pods) if loss.outcome.kind is Kind.FAILED]
    return sentences(failed[-1], "KubeRay replaces the pod") if failed else ""
