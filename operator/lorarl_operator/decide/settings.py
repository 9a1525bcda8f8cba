"""What an installation may choose, with the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NetworkAccess:
    """What the NetworkPolicy of each job allows beside connections between its own pods.

    Attributes:
        sources: Who else may connect to the job's pods: peers, as in `from` of a NetworkPolicy.
        egress: Rules for outgoing connections, beside DNS. None: all are allowed.
    """

    sources: tuple[dict[str, Any], ...] = ()
    egress: tuple[dict[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """How the operator decides and builds. All times are in seconds.

    Attributes:
        trainer_image: Image for jobs without `cluster.image`.
        backoff_seconds: Delay before the first retry of a failed attempt. It doubles with each failure.
        backoff_limit_seconds: Longest delay before a retry.
        retry_after_preemption_seconds: Delay before the retry of an attempt that was preempted or lost its machine.
            It doubles if preemptions follow each other closely.
        preemption_limit_seconds: Longest delay before such a retry.
        settle_seconds: How long to wait for news about an end whose cause is still unknown. Pods and trainer report
            through other watches.
        stuck_seconds: An attempt that does not run after this time is explained from Events and Kueue's Workload.
        refused_seconds: Delay before an action that the API server refused is tried again.
        refused_briefly_seconds: The same for a refusal that may end soon: a name that another object has, or a quota
            that is not counted yet.
        pods_gone_seconds: How long after their grace period terminating pods may delay the next attempt. On a lost
            node they never disappear.
        keep_head_seconds: How long the head pod of a finished job stays for its logs. With Kueue it is deleted at once.
        start_deadline_seconds: How long an attempt without startDeadlineSeconds may hold all its machines before it
            runs. 0: without limit.
        partly_placed_seconds: How long an attempt outside a queue may hold some of its machines while no node has room
            for its other pods. 0: without limit.
        recovery_seconds: How long an attempt may wait for lost worker pods to be replaced. 0: their loss ends it at
            once.
        network: What the NetworkPolicy of each job allows. None: jobs get none.
        default_template: Name of the ClusterLoRARLJobTemplate for jobs without `templateRef`; empty for none.
        cleanup_seconds: How long the removal of a deleted job's checkpoints may take before the operator gives up.
    """

    trainer_image: str
    backoff_seconds: float = 10.0
    backoff_limit_seconds: float = 360.0
    retry_after_preemption_seconds: float = 1.0
    preemption_limit_seconds: float = 60.0
    settle_seconds: float = 3.0
    stuck_seconds: float = 5.0
    refused_seconds: float = 30.0
    refused_briefly_seconds: float = 3.0
    pods_gone_seconds: float = 10.0
    keep_head_seconds: int = 600
    start_deadline_seconds: int = 7200
    partly_placed_seconds: int = 900
    recovery_seconds: int = 600
    network: NetworkAccess | None = NetworkAccess()
    default_template: str = ""
    cleanup_seconds: int = 900
