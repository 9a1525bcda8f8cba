"""The machines that a job asks a cluster for, and its pods there. `lorarl run` reads only nodes and gpusPerNode."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import Model, ObjectName, SecretName

MAX_GRACE_SECONDS = 3600
SCHEDULING_PREFIXES = (
    "kueue.x-k8s.io/",
    "volcano.sh/",
    "scheduling.volcano.sh/",
    "scheduling.k8s.io/",
    "kai.scheduler/",
    "ray.io/",
)
"""Prefixes of a job's labels and annotations that its RayJob and pods get too: queues, priorities, gangs."""

_LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_CPU_QUANTITY = r"[1-9][0-9]{0,5}|[0-9]{1,6}[.][0-9]{1,3}|[1-9][0-9]{0,8}m"
QUALIFIED_NAME = rf"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_LABEL_NAME}"

LabelValue = Annotated[
    str,
    Field(
        max_length=63,
        pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$",
        examples=["h200"],
        json_schema_extra={
            "expected": "a label value: at most 63 letters, digits, dots, dashes and underscores, "
            "with a letter or digit at both ends"
        },
    ),
]
AnnotationValue = Annotated[str, Field(max_length=4096, examples=["arn:aws:iam::123456789012:role/trainer"])]
QualifiedName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=317,
        pattern=rf"^{QUALIFIED_NAME}$",
        json_schema_extra={"expected": "a qualified Kubernetes name, such as nvidia.com/gpu"},
    ),
]


def _whole_cpus(value: Any) -> Any:
    """Kubernetes reads cpu: 8 as "8"."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Cpus = Annotated[
    str,
    BeforeValidator(_whole_cpus, json_schema_input_type=str),
    Field(
        min_length=1,
        max_length=16,
        examples=["8"],
        json_schema_extra={
            "expected": 'a Kubernetes CPU quantity: 8, "1.5" or 500m',
            "x-kubernetes-int-or-string": True,
            "minimum": 1,  # for a number without quotes
            "maximum": 999_999,
        },
    ),
]
"""A CPU quantity.

A whole number needs no quotes. The API server ignores the pattern of such a field; `_cpu_rule` checks it.
"""
Bytes = Annotated[
    str,
    Field(
        min_length=2,
        max_length=24,
        pattern=r"^[1-9][0-9]{0,14}([.][0-9]{1,3})?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)$",
        examples=["64Gi"],
        json_schema_extra={"expected": "a memory quantity with a unit, such as 512Mi or 64Gi"},
    ),
]
"""A memory quantity. The unit is required: 64 without a unit would be 64 bytes."""


def _cpu_rule(field: str, *, optional: bool = False) -> Rule:
    absent = f"!has(self.{field}) || " if optional else ""
    return Rule(
        field,
        f"{absent}type(self.{field}) == int || self.{field}.matches(r'^({_CPU_QUANTITY})$')",
        "be a Kubernetes CPU quantity of at most 999999",
        'Write a quantity such as 8, "1.5" or 500m.',
    )


def _label_keys(field: str, kind: str) -> Rule:
    return Rule(
        field,
        f"self.{field}.all(key, key.matches(r'^{QUALIFIED_NAME}$') && size(key) <= 317)",
        f"have valid keys of Kubernetes {kind}: [PREFIX/]NAME, of letters, digits, dots, dashes and underscores",
        "Write a key such as example.com/name.",
    )


class HeadSpec(Model):
    """The head's container: Ray's control plane and the process that runs the loop.

    It has no GPU and runs no worker.
    """

    cpus: Cpus = Field(
        "1", description="CPU request, as a Kubernetes quantity. The head uses more if the node has free CPUs."
    )
    memory: Bytes = Field(
        "4Gi", description="Memory request and limit. The encoded rows and one step's samples must fit."
    )
    disk: Bytes | None = Field(
        None,
        description="Like diskPerNode, for the head: data, logs and the run's output. Default: no request and no "
        "limit.",
        examples=["20Gi"],
    )

    rules: ClassVar[tuple[Rule, ...]] = (_cpu_rule("cpus"),)


class RdmaSpec(Model):
    """A network that reads and writes the memory of other nodes (InfiniBand, RoCE, EFA)."""

    resource_name: QualifiedName = Field(
        description="Extended resource that the node's device plugin offers.", examples=["rdma/hca_shared_devices_a"]
    )
    count: int = Field(1, ge=1, le=64, description="Number of these resources per worker pod.")


class Toleration(Model):
    """One toleration, as in `core/v1`."""

    key: QualifiedName | None = Field(
        None,
        description="Key of the tolerated taint. Default: any key, which needs operator Exists.",
        examples=["nvidia.com/gpu"],
    )
    operator: Literal["Exists", "Equal"] = Field(
        "Equal", description="Exists: any value of the taint. Equal: the same value as in value."
    )
    value: LabelValue | None = Field(
        None, description="Value of the tolerated taint, with operator Equal. Default: empty.", examples=["present"]
    )
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the tolerated taint. Default: any effect.", examples=["NoSchedule"]
    )
    toleration_seconds: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="Seconds until a NoExecute taint evicts the pod. Default: never.",
        examples=[300],
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "key",
            "has(self.key) || self.operator == 'Exists'",
            "be set if operator is Equal",
            "Add the taint's key, or set operator: Exists.",
        ),
        Rule(
            "value",
            "!has(self.value) || self.operator == 'Equal'",
            "not be set if operator is Exists",
            "Remove value, or set operator: Equal.",
        ),
        Rule(
            "tolerationSeconds",
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "not be set unless effect is NoExecute",
            "Remove tolerationSeconds, or set effect: NoExecute.",
        ),
    )


class TopologySpec(Model):
    """How close to each other the workers must be."""

    key: QualifiedName = Field(
        description="Node label whose value names a domain (a rack, a block, a zone). All workers go into one domain.",
        examples=["topology.kubernetes.io/zone"],
    )
    mode: Literal["Required", "Preferred"] = Field(
        "Required",
        description="Required: wait until one domain has room for all workers. Preferred: use several domains if "
        "none has.",
    )


Preserved = Annotated[
    dict[str, Any], Field(max_length=64, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
]
"""A mapping with keys of Kubernetes. It is not changed, and it is checked when the RayJob is created."""


class PodTemplateOverride(Model):
    """A part of a `core/v1` PodTemplateSpec."""

    metadata: Preserved | None = Field(
        None, description="Labels and annotations to add.", examples=[{"annotations": {"example.com/team": "research"}}]
    )
    spec: Preserved | None = Field(
        None, description="Part of a PodSpec. The first container is Ray's.", examples=[{"hostNetwork": True}]
    )


class PodTemplateOverrides(Model):
    """Parts of the pod templates that override lorarl's own.

    Mappings are merged, and lists of named entries by name.
    """

    head: PodTemplateOverride | None = Field(
        None, description="Overrides for the head's pod.", examples=[{"spec": {"hostNetwork": True}}]
    )
    worker: PodTemplateOverride | None = Field(
        None, description="Overrides for each worker's pod.", examples=[{"spec": {"hostNetwork": True}}]
    )


class ClusterSpec(Model):
    """The machines, and the pods on them.

    `lorarl run` reads nodes and gpusPerNode, and reports that it ignores the rest.
    """

    nodes: int = Field(
        1, ge=1, le=1024, description="Machines with workers, one worker pod on each. `lorarl run` has one machine."
    )
    gpus_per_node: int = Field(
        0,
        ge=0,
        le=64,
        description="GPUs on each machine, one worker per GPU. 0: a CPU job, with trainer.tensorParallelSize workers.",
    )
    gpu_resource: QualifiedName = Field("nvidia.com/gpu", description="Extended resource that represents a GPU.")
    image: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        pattern=r"^[^\s@]+(@sha256:[0-9a-f]{64})?$",
        description="Image of lorarl's trainer, for head and workers. Default: the image that the operator is "
        "configured with when the job first runs.",
        examples=["registry.example.com/lorarl/trainer:0.1.0"],
        json_schema_extra={"expected": "an image such as registry.example.com/lorarl/trainer:0.1.0, without spaces"},
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None,
        description="When the image is pulled. Default, as in Kubernetes: Always for the tag latest, otherwise "
        "IfNotPresent.",
        examples=["IfNotPresent"],
    )
    image_pull_secrets: list[SecretName] = Field(
        default_factory=list, max_length=16, description="Names of Secrets with credentials for the image's registry."
    )
    cpus_per_node: Cpus | None = Field(
        None,
        description="CPU request of each worker pod, as a Kubernetes quantity. Default: no request. There is never a "
        "limit.",
    )
    memory_per_node: Bytes | None = Field(
        None,
        description="Memory request and limit of each worker pod. Default: neither. The content of /dev/shm counts "
        "too.",
        examples=["512Gi"],
    )
    disk_per_node: Bytes | None = Field(
        None,
        description="Disk of each worker pod's node for the base model, the data and compiled kernels: the request "
        "for ephemeral-storage, and the limit of the volumes cache and scratch. Default: no request and no limit.",
        examples=["200Gi"],
    )
    head: HeadSpec = Field(default_factory=HeadSpec, description="The head's container.")
    shared_memory: Bytes = Field(
        "16Gi", description="Largest size of /dev/shm, which NCCL, vLLM and Ray use. It takes only the memory in use."
    )
    rdma: RdmaSpec | None = Field(
        None,
        description="RDMA network for NCCL. It adds the resource and the capability IPC_LOCK to worker pods. "
        "Default: the pod network.",
    )
    submission_mode: Literal["SidecarMode", "K8sJobMode", "HTTPMode"] = Field(
        "SidecarMode",
        description="How KubeRay starts the loop. SidecarMode: with a second container in the head's pod. "
        "K8sJobMode: with a separate Job, which is one more pod to schedule. HTTPMode: KubeRay itself starts it, "
        "and must reach the head.",
    )
    service_account_name: ObjectName | None = Field(
        None,
        description="Existing ServiceAccount for the pods. lorarl permits it to write this job's status. Default: "
        "lorarl creates one for the job.",
        examples=["trainer"],
    )
    service_account_annotations: dict[str, AnnotationValue] = Field(
        default_factory=dict,
        max_length=32,
        description="Annotations of the ServiceAccount that lorarl creates. Clouds use them to give its pods access "
        "to stores (IRSA, workload identity).",
        examples=[{"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/trainer"}],
    )
    priority_class_name: ObjectName | None = Field(
        None, description="PriorityClass of the pods. Default: the cluster's.", examples=["high"]
    )
    node_selector: dict[str, LabelValue] = Field(
        default_factory=dict,
        max_length=64,
        description="Labels that the workers' nodes must have.",
        examples=[{"example.com/gpu": "h200"}],
    )
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=32, description="Taints that head and workers tolerate."
    )
    topology: TopologySpec | None = Field(
        None, description="Keeps the workers of one job close to each other. Default: no constraint."
    )
    scheduler_name: ObjectName | None = Field(
        None, description="Scheduler of the pods. Default: the cluster's.", examples=["volcano"]
    )
    termination_grace_period_seconds: int = Field(
        120,
        ge=1,
        le=MAX_GRACE_SECONDS,
        description="Seconds that a pod has for its checkpoint when it is deleted. Allow the time of one step and "
        "one upload.",
    )
    pod_template_overrides: PodTemplateOverrides = Field(
        default_factory=PodTemplateOverrides,
        description="Pod settings without a field above. Anyone who may read the job can read them: name Secrets "
        "here, and never write their values.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "serviceAccountAnnotations",
            "!has(self.serviceAccountName) || size(self.serviceAccountAnnotations) == 0",
            "be empty if serviceAccountName is set, because lorarl never changes your ServiceAccounts",
            "Annotate that ServiceAccount yourself, or remove serviceAccountName.",
        ),
        _cpu_rule("cpusPerNode", optional=True),
        _label_keys("serviceAccountAnnotations", "annotations"),
        _label_keys("nodeSelector", "labels"),
        Rule(
            "rdma",
            "!has(self.rdma) || self.gpusPerNode > 0",
            "not be set for a CPU job, because only NCCL uses it",
            "Remove rdma, or set cluster.gpusPerNode.",
        ),
    )
