"""How many nodes a job may have: `cluster.minNodes` to `cluster.nodes`. Without minNodes it has all of them or none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lorarl_operator.decide.models import Pod, RayCluster
from lorarl_operator.decide.valid_spec import section, whole_number


@dataclass(frozen=True, slots=True)
class NodeRange:
    """The fewest and the most nodes of a job."""

    fewest: int
    most: int

    @property
    def is_elastic(self) -> bool:
        """Whether the job may have fewer nodes than it asks for."""
        return self.fewest < self.most


def node_range(spec: dict[str, Any]) -> NodeRange:
    """The range of a spec that may not be valid."""
    cluster = section(spec, "cluster")
    most = whole_number(cluster.get("nodes"), 1) or 1
    fewest = whole_number(cluster.get("minNodes"), most) or most
    return NodeRange(min(fewest, most), most)


def scaled_cluster(clusters: Iterable[RayCluster]) -> RayCluster | None:
    """The RayCluster of which it is known how many workers it asks for; None if there is none."""
    return next((each for each in clusters if each.replicas), None)


def placed_workers(pods: Iterable[Pod]) -> list[Pod]:
    """The worker pods that hold a node's GPUs, as far as they are not about to leave it."""
    return _placed(pods, "worker")


def placed_engines(pods: Iterable[Pod]) -> list[Pod]:
    """The same of separate engines."""
    return _placed(pods, "engine")


def _placed(pods: Iterable[Pod], role: str) -> list[Pod]:
    return [
        pod
        for pod in pods
        if pod.role == role and pod.node and not pod.deletion_asked_at and pod.phase not in {"Failed", "Succeeded"}
    ]
