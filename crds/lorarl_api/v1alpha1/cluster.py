"""The machines that a job asks a cluster for, and what its pods carry there. `lorarl run` reads nodes and gpusPerNode alone."""

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
"""Labels and annotations of a job that are for its RayJob and pods: queues, priorities, gangs."""

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
            "expected": "a label's value: at most 63 letters, digits, - _ and ., a letter or digit at both ends"
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
        json_schema_extra={"expected": "a name as Kubernetes has them, such as nvidia.com/gpu"},
    ),
]


def _whole_cpus(value: Any) -> Any:
    """Kubernetes takes cpu: 8 for "8"."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Cpus = Annotated[
    str,
    BeforeValidator(_whole_cpus, json_schema_input_type=str),
    Field(
        min_length=1,
        max_length=16,
        examples=["8"],
        json_schema_extra={
            "expected": 'CPUs as Kubernetes writes them: 8, "1.5" or 500m',
            "x-kubernetes-int-or-string": True,
            "minimum": 1,  # of a number without quotes
            "maximum": 999_999,
        },
    ),
]
"""A quantity of CPU; a whole number needs no quotes. The API server looks at no pattern of such a field: `_cpu_rule` does."""
Bytes = Annotated[
    str,
    Field(
        min_length=2,
        max_length=24,
        pattern=r"^[1-9][0-9]{0,14}([.][0-9]{1,3})?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)$",
        examples=["64Gi"],
        json_schema_extra={"expected": "a quantity of memory with its unit, such as 512Mi or 64Gi"},
    ),
]
"""A quantity of memory. Its unit is asked for: 64 without one would be 64 bytes."""


def _cpu_rule(field: str, *, optional: bool = False) -> Rule:
    absent = f"!has(self.{field}) || " if optional else ""
    return Rule(
        field,
        f"{absent}type(self.{field}) == int || self.{field}.matches(r'^({_CPU_QUANTITY})$')",
        f"{field} to be CPUs as Kubernetes writes them, at most 999999",
        'write e.g. 8, "1.5" or 500m',
    )


def _label_keys(field: str, what: str) -> Rule:
    return Rule(
        field,
        f"self.{field}.all(key, key.matches(r'^{QUALIFIED_NAME}$') && size(key) <= 317)",
        f"{field} with keys that Kubernetes takes for {what}: [PREFIX/]NAME, of letters, digits, - _ and .",
        "mend the key, e.g. example.com/name",
    )


class HeadSpec(Model):
    """The head's container: Ray's control plane and the process that drives the loop. It has no GPU and runs no worker."""

    cpus: Cpus = Field(
        "1", description="CPUs that are requested, as a Kubernetes quantity; more are used where the node has them."
    )
    memory: Bytes = Field(
        "4Gi", description="Memory that is requested, and its limit. It holds the encoded rows and one step's samples."
    )

    rules: ClassVar[tuple[Rule, ...]] = (_cpu_rule("cpus"),)


class RdmaSpec(Model):
    """A network that reads and writes memory of other nodes (InfiniBand, RoCE, EFA)."""

    resource_name: QualifiedName = Field(
        description="Extended resource that the node's device plugin offers.", examples=["rdma/hca_shared_devices_a"]
    )
    count: int = Field(1, ge=1, le=64, description="How many of it each worker pod asks for.")


class Toleration(Model):
    """One toleration, as `core/v1` has it."""

    key: QualifiedName | None = Field(
        None,
        description="Taint that is tolerated; every one when absent, with operator Exists.",
        examples=["nvidia.com/gpu"],
    )
    operator: Literal["Exists", "Equal"] = Field(
        "Equal", description="Exists: whatever the taint's value. Equal: it is value."
    )
    value: LabelValue | None = Field(
        None, description="Value of the taint, with operator Equal; empty when absent.", examples=["present"]
    )
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect that is tolerated; every one when absent.", examples=["NoSchedule"]
    )
    toleration_seconds: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="Seconds for which a NoExecute taint is tolerated before the pod is evicted; for ever when absent.",
        examples=[300],
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "key",
            "has(self.key) || self.operator == 'Exists'",
            "a key with operator Equal",
            "add the taint's key, or set operator: Exists",
        ),
        Rule(
            "value",
            "!has(self.value) || self.operator == 'Equal'",
            "no value with operator Exists",
            "remove value, or set operator: Equal",
        ),
        Rule(
            "tolerationSeconds",
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds only with effect NoExecute",
            "remove tolerationSeconds, or set effect: NoExecute",
        ),
    )


class TopologySpec(Model):
    """How near to each other the workers are to be."""

    key: QualifiedName = Field(
        description="Label of the nodes that names a domain (a rack, a block, a zone); all workers go into one domain.",
        examples=["topology.kubernetes.io/zone"],
    )
    mode: Literal["Required", "Preferred"] = Field(
        "Required",
        description="Required: wait until one domain has room for all. Preferred: take more domains where it has not.",
    )


Preserved = Annotated[
    dict[str, Any], Field(max_length=64, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
]
"""A mapping whose keys are Kubernetes' own: kept as it is, and checked when the RayJob is made."""


class PodTemplateOverride(Model):
    """A part of a `core/v1` PodTemplateSpec."""

    metadata: Preserved | None = Field(
        None, description="Labels and annotations to add.", examples=[{"annotations": {"example.com/team": "research"}}]
    )
    spec: Preserved | None = Field(
        None, description="Part of a PodSpec. The first container is Ray's.", examples=[{"hostNetwork": True}]
    )


class PodTemplateOverrides(Model):
    """Parts of the pod templates that win over what lorarl makes. Mappings are merged, lists of named entries are merged by name."""

    head: PodTemplateOverride | None = Field(
        None, description="For the head's pod.", examples=[{"spec": {"hostNetwork": True}}]
    )
    worker: PodTemplateOverride | None = Field(
        None, description="For each worker's pod.", examples=[{"spec": {"hostNetwork": True}}]
    )


class ClusterSpec(Model):
    """The machines, and the pods on them. `lorarl run` reads nodes and gpusPerNode, and says of the rest that it is ignored."""

    nodes: int = Field(
        1, ge=1, le=1024, description="Machines with workers, one worker pod on each. `lorarl run` has one."
    )
    gpus_per_node: int = Field(
        0,
        ge=0,
        le=64,
        description="GPUs on each machine, one worker a GPU. 0: a CPU job, with as many workers as trainer.tensorParallelSize.",
    )
    gpu_resource: QualifiedName = Field("nvidia.com/gpu", description="Extended resource that stands for a GPU.")
    image: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        pattern=r"^[^\s@]+(@sha256:[0-9a-f]{64})?$",
        description="Image of lorarl's trainer, for head and workers; the operator's own setting when absent.",
        examples=["registry.example.com/lorarl/trainer:0.1.0"],
        json_schema_extra={"expected": "an image such as registry.example.com/lorarl/trainer:0.1.0, without spaces"},
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None,
        description="When the image is pulled. When absent as Kubernetes has it: Always for the tag latest, else IfNotPresent.",
        examples=["IfNotPresent"],
    )
    image_pull_secrets: list[SecretName] = Field(
        default_factory=list, max_length=16, description="Names of Secrets with keys of the image's registry."
    )
    cpus_per_node: Cpus | None = Field(
        None,
        description="CPUs that each worker pod requests, as a Kubernetes quantity; no request when absent. No limit is set.",
    )
    memory_per_node: Bytes | None = Field(
        None,
        description="Memory that each worker pod requests, and its limit; neither when absent. What is in /dev/shm counts as well.",
        examples=["512Gi"],
    )
    head: HeadSpec = Field(default_factory=HeadSpec, description="The head's container.")
    shared_memory: Bytes = Field(
        "16Gi", description="Largest size of /dev/shm, which NCCL, vLLM and Ray use; only what is used is taken."
    )
    rdma: RdmaSpec | None = Field(
        None,
        description="Network for NCCL; adds the resource and the capability IPC_LOCK to worker pods. The pods' own network when absent.",
    )
    submission_mode: Literal["SidecarMode", "K8sJobMode", "HTTPMode"] = Field(
        "SidecarMode",
        description="How KubeRay starts the loop. SidecarMode: by a second container of the head's pod. K8sJobMode: by a Job of its own, "
        "one more pod to schedule. HTTPMode: by KubeRay itself, which must reach the head.",
    )
    service_account_name: ObjectName | None = Field(
        None,
        description="ServiceAccount of the pods that is there already; lorarl gives it the right to write this job's status. When absent "
        "lorarl makes one for the job.",
        examples=["trainer"],
    )
    service_account_annotations: dict[str, AnnotationValue] = Field(
        default_factory=dict,
        max_length=32,
        description="Annotations of the ServiceAccount that lorarl makes, by which clouds give its pods access to stores (IRSA, workload "
        "identity).",
        examples=[{"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/trainer"}],
    )
    priority_class_name: ObjectName | None = Field(
        None, description="PriorityClass of the pods; the cluster's default when absent.", examples=["high"]
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
        None, description="Keeps the workers of one job near to each other; anywhere when absent."
    )
    scheduler_name: ObjectName | None = Field(
        None, description="Scheduler of the pods; the cluster's default when absent.", examples=["volcano"]
    )
    termination_grace_period_seconds: int = Field(
        120,
        ge=1,
        le=MAX_GRACE_SECONDS,
        description="Seconds that a pod has for its checkpoint when it is taken away. Give it the time of one step and one upload.",
    )
    pod_template_overrides: PodTemplateOverrides = Field(
        default_factory=PodTemplateOverrides,
        description="What no field above says. Everyone who may read the job reads this: name Secrets here, never write their values.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "serviceAccountAnnotations",
            "!has(self.serviceAccountName) || size(self.serviceAccountAnnotations) == 0",
            "serviceAccountAnnotations only without serviceAccountName: lorarl changes no ServiceAccount of yours",
            "annotate that ServiceAccount yourself, or remove serviceAccountName",
        ),
        _cpu_rule("cpusPerNode", optional=True),
        _label_keys("serviceAccountAnnotations", "annotations"),
        _label_keys("nodeSelector", "labels"),
        Rule(
            "rdma",
            "!has(self.rdma) || self.gpusPerNode > 0",
            "rdma only on a GPU job: it is NCCL that uses it",
            "remove rdma, or set cluster.gpusPerNode",
        ),
    )
