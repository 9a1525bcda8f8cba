"""Recovery in place: an attempt that loses worker pods keeps its RayJob, and with that its place in the queue.

KubeRay replaces the pods at once. The driver, in the head's pod, then starts new workers, which resume from the newest
checkpoint. The trainer reports the pods that it trains with (`status.workers`), so their names say which losses matter.
A trainer that reports none cannot recover, and the loss ends its attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lorarl_operator.decide.decision import DeletePod
from lorarl_operator.decide.early_losses import losses, too_many
from lorarl_operator.decide.models import Pod
from lorarl_operator.decide.pod_ends import (
    NODE_DOWN,
    Outcome,
    ended,
    exit_outcome,
    exited_container,
    exited_worker,
    taken,
)
from lorarl_operator.decide.reasons import Ended

UNREPLACED_SECONDS = 75.0
"""How long KubeRay may keep a pod whose machine Ray has lost. It replaces none before that pod fails or is gone.

Kubernetes needs 50 s to declare a node unreachable.
"""
_REPLACED_WITHIN = timedelta(seconds=10)
"""KubeRay may have replaced a pod this long before its loss was recorded."""


@dataclass(frozen=True, slots=True)
class Workers:
    """What the trainer reports about its worker pods.

    Attributes:
        pods: Names of those that train, or last did.
        lost: Why it waits for others; empty while it trains.
        growing: Why all start again with more pods; empty while they train.
    """

    pods: frozenset[str]
    lost: str
    growing: str = ""


def workers_of(status: dict[str, Any], attempt: int) -> Workers | None:
    """The report in a status; None if it is not of this attempt or names no pods."""
    match status.get("workers"):
        case {"attempt": int(number), "pods": [str(), *_] as pods, **rest} if number == attempt:
            told = (str(rest.get(name) or "") for name in ("lost", "growing"))
            return Workers(frozenset(str(pod) for pod in pods), *told)
    return None


def in_use(pods: Iterable[Pod], workers: Workers | None) -> list[Pod]:
    """The pods whose end ends or interrupts the training: the head, and the workers that train.

    Those of engines and environments are not among them, nor workers that were replaced, and replacements. The trainer
    uses the engines or environments that are left, and starts one in the new pod.
    """
    trains = (pod for pod in pods if not pod.is_spare)
    return [pod for pod in trains if workers is None or pod.role != "worker" or pod.name in workers.pods]


def is_complete(workers: Workers, pods: Iterable[Pod]) -> bool:
    """Whether the training has all its worker pods."""
    sound = {pod.name for pod in pods if not (pod.deletion_asked_at or taken(pod) or exited_container(pod))}
    return not workers.lost and workers.pods <= sound


def failed_replacement(pods: Iterable[Pod], workers: Workers, since: datetime) -> Outcome | None:
    """The end of an attempt whose new worker pods end too; None while they may still come.

    `workers`: The trainer's report, which does not name them yet.
    """
    new = [
        pod
        for pod in pods
        if pod.role == "worker" and pod.name not in workers.pods and pod.created_at >= since - _REPLACED_WITHIN
    ]
    stays_so = (pod for pod in new if not exited_worker(pod))
    exits = (exit_outcome(pod, container) for pod in stays_so if (container := exited_container(pod)))
    return next(exits, None) or too_many(losses(new))


def unreplaced(workers: Workers, pods: Iterable[Pod], waited: float) -> Outcome | None:
    """The end of an attempt whose workers are all sound by Kubernetes' account, although Ray has lost a machine."""
    kept = [pod for pod in pods if pod.name in workers.pods]
    if waited < UNREPLACED_SECONDS or len(kept) < len(workers.pods):
        return None
    if any(pod.deletion_asked_at or not pod.ready for pod in kept):
        return None
    return ended(Ended.WORKER_UNREACHABLE, workers.lost)


def lingering(pods: Iterable[Pod], role: str, now: datetime, patience: timedelta) -> list[DeletePod]:
    """The pods of lost nodes whose time is over. See `to_delete`."""
    return [
        DeletePod(pod.name, pod.uid, at_once=True)
        for pod in pods
        if pod.role == role and not pod.ready and pod.disruption_reason in NODE_DOWN and has_overstayed(pod)
        if pod.gone_by and now > pod.gone_by + patience
    ]


def has_overstayed(pod: Pod) -> bool:
    """Whether a pod whose time is over can still be removed at once. If that was done, a finalizer keeps it."""
    return pod.gone_by != pod.deletion_asked_at


def to_delete(
    workers: Workers, pods: Iterable[Pod], waited: float, now: datetime, patience: timedelta
) -> list[DeletePod]:
    """The worker pods that only their deletion lets KubeRay replace.

    A node that does not respond never confirms that its pods are gone. Its pods tolerate that for a while, and then
    Kubernetes asks for their deletion. When their grace period is over too, they are removed without that node's word.

    `patience`: How long after its grace period a pod may still go by itself.
    """
    found = lingering(pods, "worker", now, patience)
    for pod in (pod for pod in pods if pod.role == "worker" and not pod.ready):
        broken = workers.lost and pod.name in workers.pods and not pod.silent
        if broken and not pod.gone_by and waited >= UNREPLACED_SECONDS:
            found.append(DeletePod(pod.name, pod.uid, at_once=False))
    return found
