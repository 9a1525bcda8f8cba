"""The nodes that the pods of an attempt must, should and may use."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lorarl_api.faults import Fault, ManifestError
from lorarl_api.v1alpha1 import LoRARLJobSpec, Toleration
from lorarl_operator.decide.models import LABEL_ATTEMPT, LABEL_JOB_UID, LABEL_ROLE, Job

HEAD, WORKER, ENGINE, ENVIRONMENT = "head", "worker", "engine", "environment"
Template = dict[str, Any]

_HOSTNAME = "kubernetes.io/hostname"
_UNREACHABLE = "node.kubernetes.io/unreachable"
_UNREACHABLE_SECONDS = 60
_TOPOLOGY = {
    "Required": "kueue.x-k8s.io/podset-required-topology",
    "Preferred": "kueue.x-k8s.io/podset-preferred-topology",
}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_GPU_LABELS = (
    "nvidia.com/gpu.present",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-count",
    "kubernetes.azure.com/accelerator",
)
"""Labels that only nodes with GPUs have: of NVIDIA's and AMD's node labellers, and of clouds."""
_GANG_PREFIXES = (
    *("volcano.sh/", "scheduling.volcano.sh/", "scheduling.k8s.io/", "kai.scheduler/"),
    *("yunikorn.apache.org/", "scheduling.x-k8s.io/", "ray.io/scheduler-name", "ray.io/gang-scheduling-enabled"),
)
_GANG_SCHEDULERS = frozenset({"volcano", "kai-scheduler", "yunikorn"})


def place_head(spec: LoRARLJobSpec, template: Template) -> None:
    """Leave the GPU nodes to the workers.

    The scheduler prefers the emptiest node, which is the idle one with GPUs. There the head could take the CPUs that
    its own worker needs, and keep an autoscaler from removing the node.
    """
    _place_without_gpus(spec, template, spec.cluster.head.node_selector, _head_tolerations(spec))


def place_environments(spec: LoRARLJobSpec, template: Template) -> None:
    """Leave the GPU nodes to the workers, as the head does. What these pods do not say themselves, the head says."""
    head, own = spec.cluster.head, spec.cluster.environments
    assert own is not None, "the job has pods for its environment"
    tolerations = _head_tolerations(spec) if own.tolerations is None else own.tolerations
    _place_without_gpus(spec, template, own.node_selector or head.node_selector, tolerations)


def _place_without_gpus(
    spec: LoRARLJobSpec, template: Template, selector: dict[str, str], tolerations: Sequence[Toleration]
) -> None:
    template["spec"] |= _node(selector, _leaving_soon(tolerations))
    if spec.on_gpu and not selector:
        without_gpus = [{"key": label, "operator": "DoesNotExist"} for label in _GPU_LABELS]
        preference = {"weight": 100, "preference": {"matchExpressions": without_gpus}}
        template["spec"]["affinity"] = {"nodeAffinity": {_PREFERRED: [preference]}}


def head_node(spec: LoRARLJobSpec) -> dict[str, Any]:
    """Node selector and tolerations of pods without GPUs, which the head has too."""
    return _node(spec.cluster.head.node_selector, _head_tolerations(spec))


def _head_tolerations(spec: LoRARLJobSpec) -> list[Toleration]:
    if spec.cluster.head.tolerations is not None:
        return spec.cluster.head.tolerations
    return [] if spec.on_gpu else spec.cluster.tolerations


def place_workers(job: Job, spec: LoRARLJobSpec, attempt: int, template: Template, *, queued: bool) -> None:
    """Place the workers of a GPU job on separate nodes, and all workers in one domain of the topology.

    Raises:
        ManifestError: A topology is required, and nothing places all workers at once.
    """
    cluster = spec.cluster
    template["spec"] |= _node(cluster.node_selector, _leaving_soon(cluster.tolerations))
    mates = {
        "labelSelector": {"matchLabels": {LABEL_JOB_UID: job.uid, LABEL_ATTEMPT: str(attempt), LABEL_ROLE: WORKER}}
    }
    affinity: dict[str, Any] = {}
    if spec.on_gpu and cluster.nodes > 1:
        affinity["podAntiAffinity"] = {_REQUIRED: [{**mates, "topologyKey": _HOSTNAME}]}
    if topology := cluster.topology:
        if queued:
            template["metadata"].setdefault("annotations", {})[_TOPOLOGY[topology.mode]] = topology.key
        elif topology.mode == "Required":
            _require_gang(job, spec)
            affinity["podAffinity"] = {_REQUIRED: [{**mates, "topologyKey": topology.key}]}
        else:
            term = {"weight": 100, "podAffinityTerm": {**mates, "topologyKey": topology.key}}
            affinity["podAffinity"] = {_PREFERRED: [term]}
    if affinity:
        template["spec"]["affinity"] = affinity


def place_engines(spec: LoRARLJobSpec, template: Template) -> None:
    """Let engines use the workers' nodes. They need not be close to each other, nor apart."""
    template["spec"] |= _node(spec.cluster.node_selector, _leaving_soon(spec.cluster.tolerations))


def _leaving_soon(tolerations: Sequence[Toleration]) -> list[Toleration]:
    """Tolerations with which a pod soon leaves a node that does not respond. Kubernetes' own 5 minutes are for others.

    The whole job waits for the pod. It is replaced when its grace period is over, too.
    """
    if any(each.key in (None, _UNREACHABLE) and each.effect in (None, "NoExecute") for each in tolerations):
        return [*tolerations]
    briefly = {"key": _UNREACHABLE, "operator": "Exists", "effect": "NoExecute"}
    return [*tolerations, Toleration.model_validate(briefly | {"tolerationSeconds": _UNREACHABLE_SECONDS})]


def _require_gang(job: Job, spec: LoRARLJobSpec) -> None:
    """Refuse a required topology that could deadlock.

    A scheduler that places pods one at a time lets the first worker choose the domain. If that has no room for the
    others, the job holds its machines forever, although another domain is free.
    """
    keys = [key for key, _ in (*job.passed_labels, *job.passed_annotations)]
    gang = any(key.startswith(_GANG_PREFIXES) for key in keys) or spec.cluster.scheduler_name in _GANG_SCHEDULERS
    if spec.cluster.nodes > 1 and not gang:
        expected = "Preferred without a queue of Kueue or a gang scheduler, because workers are placed one at a time"
        hint = "Label the job with kueue.x-k8s.io/queue-name, also for a default queue, or set mode: Preferred."
        raise ManifestError([Fault("spec.cluster.topology.mode", "Required", expected, hint)])


@dataclass(frozen=True, slots=True)
class Avoided:
    """Names of nodes that pods do not use, and of those that they use only if no other has room."""

    never: tuple[str, ...] = ()
    last: tuple[str, ...] = ()


NO_NODES = Avoided()


def avoid(template: Template, nodes: Avoided) -> None:
    """Keep a pod away from nodes, whatever affinity it has already.

    The terms of a required affinity are alternatives, so each of them gets the condition. A node's name is a field,
    not a label: the label kubernetes.io/hostname may differ from it.
    """
    if nodes != NO_NODES:
        with suppress(AttributeError, TypeError, ValueError):  # The API server refuses such an affinity, and says why.
            template["spec"]["affinity"] = _avoiding(template["spec"].get("affinity") or {}, nodes)


def _avoiding(affinity: dict[str, Any], nodes: Avoided) -> dict[str, Any]:
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    if nodes.never:
        terms = (node_affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
        kept = [term | {"matchFields": [*(term.get("matchFields") or []), *_others(nodes.never)]} for term in terms]
        node_affinity[_REQUIRED] = {"nodeSelectorTerms": kept}
    if nodes.last:
        preference = {"weight": 100, "preference": {"matchFields": _others(nodes.last)}}
        node_affinity[_PREFERRED] = [*(node_affinity.get(_PREFERRED) or []), preference]
    return affinity | {"nodeAffinity": node_affinity}


def _others(nodes: Sequence[str]) -> list[dict[str, Any]]:
    """The condition to be none of these nodes. The API takes one name in each requirement."""
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]


def _node(selector: dict[str, str], tolerations: Sequence[Toleration]) -> dict[str, Any]:
    found: dict[str, Any] = {"nodeSelector": dict(selector)} if selector else {}
    if tolerations:
        found["tolerations"] = [each.model_dump(exclude_none=True) for each in tolerations]
    return found
