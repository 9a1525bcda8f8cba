"""What an installation may choose, with the defaults."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class NetworkAccess:
    """What the NetworkPolicy of each job allows beside connections between its own pods.

    Attributes:
        sources: Who else may connect to the job's pods: peers, as in `from` of a NetworkPolicy.
        egress: Rules for outgoing connections, beside DNS. None: all are allowed.
        kuberay_namespace: The only namespace from which KubeRay reaches Ray's dashboards; empty for any.
    """

    sources: tuple[dict[str, Any], ...] = ()
    egress: tuple[dict[str, Any], ...] | None = None
    kuberay_namespace: str = ""


def network_access(text: str) -> NetworkAccess | None:
    """Read it from JSON; None from an empty text.

    Raises:
        ValueError: It is not as expected.
    """
    if not text:
        return None
    try:
        found = json.loads(text)
        sources, egress, kuberay = found.pop("from", []), found.pop("egress", None), found.pop("kuberayNamespace", "")
        lists = [sources] if egress is None else [sources, egress]
        if found or not all(isinstance(each, list) and all(isinstance(one, dict) for one in each) for each in lists):
            raise ValueError("only `from` and `egress` are known, each a list of mappings, and `kuberayNamespace`")
        if not isinstance(kuberay, str):
            raise ValueError("`kuberayNamespace` is the name of a namespace")
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f'expected JSON such as {{"from": [], "egress": []}}: {error}') from error
    return NetworkAccess(tuple(sources), None if egress is None else tuple(egress), kuberay)


def option(meaning: str, **details: Any) -> dict[str, Any]:
    """Metadata of a field that is an option of the command `lorarl-operator`: see `options.py`.

    `details`: `least` and `most` of a number, `choices`, `read` for what makes a value of a text (it raises
    ValueError), `flag` if its name is not the field's, or click's own parameters.
    """
    return {"help": meaning, **details}


@dataclass(frozen=True, slots=True)
class Settings:
    """How the operator decides and builds. All times are in seconds. The fields that are options explain themselves.

    Attributes:
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
        cluster_uid: What distinguishes this cluster from others: the uid of its namespace kube-system, which lasts as
            long as the cluster. Empty if the operator may not read it.
        pods_gone_seconds: How long after their grace period terminating pods may delay the next attempt. On a lost
            node they never disappear.
    """

    trainer_image: str = field(metadata=option("Image for jobs without `cluster.image`."))
    cluster_uid: str = ""
    backoff_seconds: float = 10.0
    backoff_limit_seconds: float = 360.0
    retry_after_preemption_seconds: float = 1.0
    preemption_limit_seconds: float = 60.0
    settle_seconds: float = 3.0
    stuck_seconds: float = 5.0
    refused_seconds: float = 30.0
    refused_briefly_seconds: float = 3.0
    pods_gone_seconds: float = 10.0
    keep_head_seconds: int = field(
        default=600,
        metadata=option(
            "How long the head pod of a finished job stays, for its logs. With Kueue it is deleted at once.", least=0
        ),
    )
    start_deadline_seconds: int = field(
        default=7200,
        metadata=option(
            "How long an attempt of a job without `startDeadlineSeconds` may hold all its machines before it runs. "
            "0: no limit.",
            least=0,
        ),
    )
    partly_placed_seconds: int = field(
        default=900,
        metadata=option(
            "How long an attempt outside a queue may hold some of its machines while no node has room for its other "
            "pods (`PartlyPlaced`). 0: no limit.",
            least=0,
        ),
    )
    recovery_seconds: int = field(
        default=600,
        metadata=option(
            "How long an attempt may wait for lost worker pods to be replaced, before the next attempt takes its "
            "place. 0: it does so at once.",
            least=0,
        ),
    )
    elastic_wait_seconds: int = field(
        default=300,
        metadata=option(
            "How long a job with `cluster.minNodes` waits for its missing nodes before it trains on those that it has.",
            least=1,
        ),
    )
    elastic_grow_seconds: int = field(
        default=600,
        metadata=option(
            "How long such a job trains at least before it starts again on more nodes, after a checkpoint.", least=1
        ),
    )
    cleanup_seconds: int = field(
        default=900,
        metadata=option(
            "How long the removal of a deleted job's checkpoints may take, before the job is deleted without it.",
            least=1,
        ),
    )
    job_network_policy: NetworkAccess | None = field(
        default=NetworkAccess(),
        metadata=option(
            "What the NetworkPolicy of each job allows beside connections between its pods, as JSON: `from` and "
            "`egress` of a NetworkPolicy. Without `egress` it allows all outgoing connections. `kuberayNamespace`: the "
            "only namespace from which KubeRay reaches Ray's dashboards. Empty: jobs get no policy.",
            default="{}",
            read=network_access,
        ),
    )
    default_template: str = field(
        default="", metadata=option("Name of the ClusterLoRARLJobTemplate for jobs without `templateRef`.")
    )
