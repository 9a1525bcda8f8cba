"""Parts of `cluster` that describe pods and where they run."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import FREE_FORM, Model, ObjectName
from lorarl_api.v1alpha1.kubernetes import Bytes, Cpus, Image, LabelValue, QualifiedName, cpu_rule, label_keys


class TrustedCaSpec(Model):
    """Certificate authorities that the pods trust, in place of those of the image."""

    config_map: ObjectName = Field(
        description="A ConfigMap of the job's namespace with a bundle in PEM format. It must also have the public "
        "authorities that the pods need.",
        examples=["trusted-cas"],
    )
    key: str = Field(
        "ca.crt",
        min_length=1,
        max_length=253,
        pattern=r"^[-._a-zA-Z0-9]+$",
        description="Its key with the bundle.",
        json_schema_extra={"expected": "a key of a ConfigMap: letters, digits, dots, dashes and underscores"},
    )


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
    node_selector: dict[str, LabelValue] = Field(
        default_factory=dict,
        max_length=64,
        description="Labels that the head's node must have. Without it, the head of a GPU job prefers nodes without "
        "GPUs.",
        examples=[{"example.com/pool": "cpu"}],
    )
    tolerations: list[Toleration] | None = Field(
        None,
        max_length=32,
        description="Taints that the head tolerates. Default: those that the workers tolerate in a CPU job, and none "
        "in a GPU job, so that the head leaves GPU nodes to the workers.",
        examples=[[{"key": "example.com/team", "operator": "Exists"}]],
    )

    rules: ClassVar[tuple[Rule, ...]] = (cpu_rule("cpus"), label_keys("nodeSelector", "labels"))


class EnvironmentPodsSpec(Model):
    """Pods in which a job's environment plays its episodes, in place of the head's pod.

    They have no GPU, and get neither Secrets and volumes of the job nor its ServiceAccount.
    """

    replicas: int = Field(1, ge=1, le=64, description="Pods. Each episode is played in the one with the fewest.")
    image: Image | None = Field(
        None,
        description="Their image: lorarl's trainer of the same version, with packages that the environment needs. "
        "Default: that of the other pods.",
        examples=["registry.example.com/lorarl/games:0.1.0"],
    )
    cpus: Cpus = Field("1", description="CPU request of each pod, as a Kubernetes quantity. There is never a limit.")
    memory: Bytes = Field(
        "4Gi",
        description="Memory request and limit of each pod. The processes of its share of environment.concurrency "
        "episodes must fit.",
        examples=["16Gi"],
    )
    disk: Bytes | None = Field(
        None,
        description="Like diskPerNode, for each of these pods. Default: no request and no limit.",
        examples=["20Gi"],
    )
    node_selector: dict[str, LabelValue] = Field(
        default_factory=dict,
        max_length=64,
        description="Labels that their nodes must have. Default: head.nodeSelector.",
        examples=[{"example.com/pool": "cpu"}],
    )
    tolerations: list[Toleration] | None = Field(
        None,
        max_length=32,
        description="Taints that they tolerate. Default: those that the head tolerates.",
        examples=[[{"key": "example.com/team", "operator": "Exists"}]],
    )

    rules: ClassVar[tuple[Rule, ...]] = (cpu_rule("cpus"), label_keys("nodeSelector", "labels"))


class RdmaSpec(Model):
    """A network that reads and writes the memory of other nodes (InfiniBand, RoCE, EFA)."""

    resource_name: QualifiedName = Field(
        description="Extended resource that the node's device plugin offers.", examples=["rdma/hca_shared_devices_a"]
    )
    count: int = Field(1, ge=1, le=64, description="Number of these resources per worker pod.")


DeviceSelector = Annotated[
    str, Field(min_length=1, max_length=10_240, examples=["device.attributes['gpu.nvidia.com'].productName == 'H200'"])
]


class GpuClaimSpec(Model):
    """GPUs by dynamic resource allocation (DRA), which Kubernetes has since 1.34."""

    device_class: ObjectName = Field(
        description="DeviceClass of the GPUs. Each pod of a worker or a separate engine claims gpusPerNode of them.",
        examples=["gpu.nvidia.com"],
    )
    selectors: list[DeviceSelector] = Field(
        default_factory=list,
        max_length=32,
        description="CEL expressions that a device must meet, as in a DeviceRequest.",
        examples=[["device.attributes['gpu.nvidia.com'].productName.matches('H200')"]],
    )


class TopologySpec(Model):
    """How close to each other the workers must be."""

    key: QualifiedName = Field(
        description="Node label whose value names a domain (a rack, a block, a zone). All workers go into one domain.",
        examples=["topology.kubernetes.io/zone"],
    )
    mode: Literal["Required", "Preferred"] = Field(
        "Required",
        description="Required: wait until one domain has room for all workers. Several nodes need a queue of Kueue or "
        "a gang scheduler for that. Preferred: use several domains if none has.",
    )


Preserved = Annotated[dict[str, Any], Field(max_length=64, json_schema_extra=FREE_FORM)]
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
    engine: PodTemplateOverride | None = Field(
        None,
        description="Overrides for each pod with a separate engine.",
        examples=[{"spec": {"nodeSelector": {"example.com/gpu": "l40s"}}}],
    )
    environment: PodTemplateOverride | None = Field(
        None,
        description="Overrides for each pod of cluster.environments.",
        examples=[{"spec": {"runtimeClassName": "gvisor"}}],
    )
