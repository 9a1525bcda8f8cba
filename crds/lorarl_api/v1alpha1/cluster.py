"""The machines that a job asks a cluster for, and its pods there. `lorarl run` reads only nodes and gpusPerNode."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import Model, ObjectName, SecretName
from lorarl_api.v1alpha1.kubernetes import (
    AnnotationValue,
    Bytes,
    Cpus,
    EnvironmentValue,
    Image,
    LabelValue,
    ResourceName,
    cpu_rule,
    label_keys,
)
from lorarl_api.v1alpha1.pods import (
    EnvironmentPodsSpec,
    GpuClaimSpec,
    HeadSpec,
    PodTemplateOverrides,
    RdmaSpec,
    Toleration,
    TopologySpec,
    TrustedCaSpec,
)

CPUS_PER_GPU = 8
"""What a worker pod requests by default, and so the most threads that a worker with a GPU has on the host."""
MAX_GRACE_SECONDS = 3600
SCHEDULING_PREFIXES = (
    "kueue.x-k8s.io/",
    "volcano.sh/",
    "scheduling.volcano.sh/",
    "scheduling.k8s.io/",
    "kai.scheduler/",
    "yunikorn.apache.org/",
    "scheduling.x-k8s.io/",
    "ray.io/",
)
"""Prefixes of labels and annotations that schedulers and queues read. `lorarl run` has neither."""

_OTHER_GPUS = (
    *(r"amd\.com", r"(gpu|habana)\.intel\.com", r"habana\.ai", r"google\.com", r"aws\.amazon\.com"),
    r"huawei\.com",
)
"""Vendors of accelerators that neither trainer nor engine is built for, by the prefix of their resources."""


class ClusterSpec(Model):
    """The machines, and the pods on them.

    `lorarl run` reads nodes and gpusPerNode, and reports that it ignores the rest.
    """

    nodes: int = Field(
        1, ge=1, le=1024, description="Machines with workers, one worker pod on each. `lorarl run` has one machine."
    )
    min_nodes: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Fewest machines that the job trains on. While others are missing or lost, it trains on what there "
        "is, and on more of them, up to nodes, after a later checkpoint. Default: nodes, so that it waits for all.",
        examples=[1],
    )
    gpus_per_node: int = Field(
        0,
        ge=0,
        le=64,
        description="GPUs on each machine, one worker per GPU. 0: a CPU job, with trainer.tensorParallelSize x "
        "trainer.contextParallelSize workers, or trainer.expertParallelSize if that is more.",
    )
    gpu_resource: ResourceName = Field(
        "nvidia.com/gpu",
        description="Extended resource that represents a GPU, or a part of one (nvidia.com/mig-3g.40gb). Empty: none, "
        "because podTemplateOverrides ask for GPUs.",
    )
    gpu_claim: GpuClaimSpec | None = Field(
        None,
        description="Claim the GPUs by dynamic resource allocation, in place of gpuResource. Default: gpuResource.",
        examples=[{"deviceClass": "gpu.nvidia.com"}],
    )
    image: Image | None = Field(
        None,
        description="Image of lorarl's trainer, for head and workers. Default: the image that the operator is "
        "configured with when the job first runs.",
        examples=["registry.example.com/lorarl/trainer:0.1.0"],
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
    env: dict[str, EnvironmentValue] = Field(
        default_factory=dict,
        max_length=64,
        description="Environment variables of the job's containers, also of the clean-up: proxies, mirrors, NCCL's "
        "settings. Anyone who may read the job can read them.",
        examples=[{"HTTPS_PROXY": "http://proxy.example.com:3128", "NO_PROXY": ".svc,.cluster.local,10.0.0.0/8"}],
    )
    trusted_ca: TrustedCaSpec | None = Field(
        None,
        description="Certificate authorities that the job's containers trust, also the clean-up. Default: the image's.",
        examples=[{"configMap": "trusted-cas"}],
    )
    cpus_per_node: Cpus | None = Field(
        None,
        description=f"CPU request of each worker and engine pod, as a Kubernetes quantity. Default: {CPUS_PER_GPU} for "
        "each GPU; without GPUs no request. There is never a limit.",
    )
    memory_per_node: Bytes | None = Field(
        None,
        description="Memory request and limit of each worker and engine pod. The content of /dev/shm counts too. "
        "Default: a request of 64Gi for each GPU, without a limit; without GPUs neither.",
        examples=["512Gi"],
    )
    disk_per_node: Bytes | None = Field(
        None,
        description="Disk of each worker and engine pod's node for the base model, the data and compiled kernels: the "
        "request for ephemeral-storage, and the limit of the volumes cache and scratch. Default: a request of 40Gi for "
        "a GPU job outside Kueue, whose queues seldom cover it; otherwise neither.",
        examples=["200Gi"],
    )
    head: HeadSpec = Field(default_factory=HeadSpec, description="The head's container.")
    environments: EnvironmentPodsSpec | None = Field(
        None,
        description="Play the episodes of the job's environment in further pods. Default: in the head's pod.",
        examples=[{"replicas": 2, "cpus": "8", "memory": "16Gi"}],
    )
    shared_memory: Bytes = Field(
        "16Gi", description="Largest size of /dev/shm, which NCCL, vLLM and Ray use. It takes only the memory in use."
    )
    rdma: RdmaSpec | None = Field(
        None,
        description="RDMA network for NCCL. It adds the resource to worker pods, whose node must allow them to lock "
        "memory. Default: the pod network.",
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
        description="Labels that the nodes of workers and separate engines must have.",
        examples=[{"example.com/gpu": "h200"}],
    )
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=32, description="Taints that workers and separate engines tolerate."
    )
    topology: TopologySpec | None = Field(
        None, description="Keeps the workers of one job close to each other. Default: no constraint."
    )
    allow_consolidation: bool = Field(
        False,
        description="Let Karpenter and the cluster autoscaler delete the pods to use fewer nodes. Each time, the "
        "attempt ends and the next one resumes from the newest checkpoint.",
    )
    disruption: Literal["Immediate", "AfterCheckpoint"] = Field(
        "Immediate",
        description="When a drain of a node may evict pods that train. Immediate: at once, and they write a checkpoint "
        "within their grace period. AfterCheckpoint: once the training has published a checkpoint, and at the latest "
        "after the time of a step and a checkpoint.",
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
        cpu_rule("cpusPerNode", optional=True),
        Rule(
            "env",
            "self.env.all(key, key.matches(r'^[A-Za-z_][A-Za-z0-9_]{0,254}$') && !key.startsWith('LORARL_'))",
            "have names of letters, digits and underscores that do not start with LORARL_, which are lorarl's own",
            "Rename the variable.",
        ),
        Rule(
            "minNodes",
            "!has(self.minNodes) || self.minNodes <= self.nodes",
            "be at most nodes",
            "Lower minNodes, or raise cluster.nodes.",
        ),
        label_keys("serviceAccountAnnotations", "annotations"),
        label_keys("nodeSelector", "labels"),
        Rule(
            "gpuResource",
            f"!self.gpuResource.matches(r'^({'|'.join(_OTHER_GPUS)})/')",
            "be a resource of NVIDIA GPUs: lorarl trains on no others",
            "Use a name such as nvidia.com/gpu.",
        ),
        Rule(
            "gpuClaim",
            "!has(self.gpuClaim) || self.gpusPerNode > 0",
            "not be set for a CPU job, which has no GPUs to claim",
            "Remove gpuClaim, or set cluster.gpusPerNode.",
        ),
        Rule(
            "disruption",
            "!self.allowConsolidation || self.disruption == 'Immediate'",
            "be Immediate if allowConsolidation is true: autoscalers leave pods alone whose evictions wait",
            "Remove disruption or allowConsolidation.",
        ),
        Rule(
            "rdma",
            "!has(self.rdma) || self.gpusPerNode > 0",
            "not be set for a CPU job, because only NCCL uses it",
            "Remove rdma, or set cluster.gpusPerNode.",
        ),
    )

    @property
    def fewest_nodes(self) -> int:
        """The fewest machines that the job trains on."""
        return self.min_nodes or self.nodes
