"""Cases of the rules for machines and pods."""

from __future__ import annotations

from unit.contract.manifests import Case, Changes


def _toleration(field: str, bad: Changes, good: Changes, hint: str) -> Case:
    """A rule of one toleration, the second one in the list."""
    first = {"operator": "Exists", "effect": "NoSchedule"}
    return Case(
        f"{field} of a toleration",
        {"spec.cluster.tolerations": [first, bad]},
        {"spec.cluster.tolerations": [first, good]},
        f"spec.cluster.tolerations[1].{field}",
        hint,
    )


ELASTIC = {"nodes": 2, "minNodes": 1, "gpusPerNode": 2}

CLUSTER_CASES = [
    Case(
        "a rule of retryPolicy has one cause",
        {"spec.retryPolicy": [{"reason": "StorageFailed", "exitCode": 1, "action": "Fail"}]},
        {"spec.retryPolicy": [{"exitCode": 1, "action": "Fail"}]},
        "spec.retryPolicy[0].reason",
        "write two rules for two causes",
    ),
    Case(
        "GPUs are NVIDIA's",
        {"spec.cluster": {"gpusPerNode": 1, "image": "example.com/trainer:1", "gpuResource": "amd.com/gpu"}},
        {"spec.cluster": {"gpusPerNode": 1, "image": "example.com/trainer:1", "gpuResource": "example.com/gpu"}},
        "spec.cluster.gpuResource",
        "nvidia.com/gpu",
    ),
    Case(
        "variables are not lorarl's own",
        {"spec.cluster.env": {"LORARL_CACHE": "/mnt"}},
        {"spec.cluster.env": {"HTTPS_PROXY": "http://proxy:3128"}},
        "spec.cluster.env",
        "Rename the variable",
    ),
    Case(
        "the user's own ServiceAccount is not annotated",
        {
            "spec.cluster": {
                "serviceAccountName": "mine",
                "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn"},
            }
        },
        {"spec.cluster": {"serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn"}}},
        "spec.cluster.serviceAccountAnnotations",
        "Annotate that ServiceAccount yourself",
    ),
    Case(
        "annotations have keys that Kubernetes accepts",
        {"spec.cluster.serviceAccountAnnotations": {"a b": "c"}},
        {"spec.cluster.serviceAccountAnnotations": {"iam.gke.io/gcp_service.Account": "any text: @/"}},
        "spec.cluster.serviceAccountAnnotations",
        "Write a key such as example.com/name",
    ),
    Case(
        "labels have keys that Kubernetes accepts",
        {"spec.cluster.nodeSelector": {"/pool": "a"}},
        {"spec.cluster.nodeSelector": {"example.com/pool": "", "pool": "h200"}},
        "spec.cluster.nodeSelector",
        "Write a key such as example.com/name",
    ),
    Case(
        "CPUs are a quantity",
        {"spec.cluster.cpusPerNode": "8 cores"},
        {"spec.cluster.cpusPerNode": "7500m"},
        "spec.cluster.cpusPerNode",
        "Write a quantity such as 8",
    ),
    Case(
        "the head's CPUs are a quantity",
        {"spec.cluster.head.cpus": "0"},
        {"spec.cluster.head.cpus": 4},
        "spec.cluster.head.cpus",
        "Write a quantity such as 8",
    ),
    Case(
        "a claim only with GPUs",
        {"spec.cluster.gpuClaim": {"deviceClass": "gpu.nvidia.com"}},
        {"spec.cluster": {"gpusPerNode": 8, "gpuClaim": {"deviceClass": "gpu.nvidia.com"}}},
        "spec.cluster.gpuClaim",
        "Remove gpuClaim",
    ),
    Case(
        "labels of the head's node have keys that Kubernetes accepts",
        {"spec.cluster.head": {"nodeSelector": {"/pool": "a"}}},
        {"spec.cluster.head": {"nodeSelector": {"pool": "cpu"}}},
        "spec.cluster.head.nodeSelector",
        "Write a key such as example.com/name",
    ),
    Case(
        "rdma only with GPUs",
        {"spec.cluster.rdma": {"resourceName": "rdma/hca"}},
        {"spec.cluster": {"gpusPerNode": 8, "rdma": {"resourceName": "rdma/hca"}}},
        "spec.cluster.rdma",
        "Remove rdma",
    ),
    Case(
        "an eviction that waits only where autoscalers evict nothing",
        {"spec.cluster": {"disruption": "AfterCheckpoint", "allowConsolidation": True}},
        {"spec.cluster": {"disruption": "AfterCheckpoint"}},
        "spec.cluster.disruption",
        "Remove disruption or allowConsolidation",
    ),
    Case(
        "an elastic job has no more machines at least than at most",
        {"spec.cluster": {"nodes": 2, "minNodes": 3}},
        {"spec.cluster": {"nodes": 3, "minNodes": 2}},
        "spec.cluster.minNodes",
        "raise cluster.nodes",
    ),
    *(
        Case(
            f"{field} within a machine of an elastic job",
            {"spec.cluster": ELASTIC, f"spec.{field}": 4, "spec.adapter.rank": 8},
            {"spec.cluster": ELASTIC, f"spec.{field}": 2, "spec.adapter.rank": 8},
            f"spec.{field}",
            "remove cluster.minNodes",
        )
        for field in (
            *("trainer.tensorParallelSize", "trainer.contextParallelSize", "trainer.expertParallelSize"),
            "rollout.tensorParallelSize",
        )
    ),
    Case(
        "a span of machines in a job that waits for all of them",
        {"spec.cluster": ELASTIC, "spec.trainer.tensorParallelSize": 4, "spec.adapter.rank": 8},
        {"spec.cluster": ELASTIC | {"minNodes": 2}, "spec.trainer.tensorParallelSize": 4, "spec.adapter.rank": 8},
        "spec.trainer.tensorParallelSize",
        "always has all its nodes",
    ),
    Case(
        "separate engines beside nodes that do not come and go",
        {"spec.cluster": ELASTIC, "spec.rollout.separateEngines": {}},
        {"spec.cluster": ELASTIC | {"minNodes": 2}, "spec.rollout.separateEngines": {}},
        "spec.cluster.minNodes",
        "Remove cluster.minNodes or rollout.separateEngines",
    ),
    _toleration("key", {"value": "a"}, {"key": "nvidia.com/gpu", "value": "a"}, "Add the taint's key"),
    _toleration("value", {"operator": "Exists", "value": "a"}, {"operator": "Exists"}, "Remove value"),
    _toleration(
        "tolerationSeconds",
        {"key": "a", "tolerationSeconds": 1},
        {"key": "a", "effect": "NoExecute", "tolerationSeconds": 0},
        "Remove tolerationSeconds",
    ),
]
