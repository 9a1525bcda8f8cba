"""Changes of a job in the cluster, and whether the API server must refuse them."""

from __future__ import annotations

from dataclasses import dataclass

from unit.contract.manifests import EVAL, GPUS, SFT, TWO, Changes


@dataclass(frozen=True)
class Update:
    """One change."""

    name: str
    before: Changes
    """Changes of the smallest manifest."""
    after: Changes
    """Changes of the manifest before."""
    group: str | None
    """The group that may not change; None if the change is allowed."""
    phase: str | None = "Running"
    """The job's phase at that time; None if it has none yet."""


_POD = "spec.cluster.podTemplateOverrides.worker.spec"
UPDATES = [
    Update("another model", {}, {"spec.model.uri": "hf://a/b"}, "spec.model"),
    Update("a revision", {"spec.model.uri": "hf://a/b"}, {"spec.model.revision": "main"}, "spec.model"),
    Update("another rank", {}, {"spec.adapter.rank": 8}, "spec.adapter"),
    Update("other modules", {}, {"spec.adapter.targetModules": ["q_proj"]}, "spec.adapter"),
    Update("a group of another size", {}, {"spec.algorithm.groupSize": 4}, "spec.algorithm"),
    Update("another reward", {}, {"spec.reward.type": "numeric"}, "spec.reward"),
    Update("no reward any more", {}, SFT, "spec.reward"),
    Update(
        "a reward all at once", SFT, {"spec.algorithm.type": "grpo", "spec.reward": {"type": "exact"}}, "spec.reward"
    ),
    Update(
        "another weight",
        {"spec.reward": None, "spec.rewards": TWO},
        {"spec.rewards": [TWO[0] | {"weight": 2.0}, TWO[1]]},
        "spec.rewards",
    ),
    Update("other data", {}, {"spec.data.train.uri": "s3://a/b.csv"}, "spec.data"),
    Update("held-out data", {}, EVAL, "spec.data"),
    Update("another temperature", {}, {"spec.rollout.temperature": 0.5}, "spec.rollout"),
    Update("another learning rate", {}, {"spec.trainer.learningRate": 0.5}, "spec.trainer"),
    Update("a precision", {}, {"spec.trainer.precision": "fp32"}, "spec.trainer"),
    Update(
        "no precision any more", {"spec.trainer.precision": "fp32"}, {"spec.trainer.precision": None}, "spec.trainer"
    ),
    Update("another store", {}, {"spec.checkpoint.uri": "s3://a/b"}, "spec.checkpoint"),
    Update("another Secret", {}, {"spec.checkpoint.credentialsSecret": "s3"}, "spec.checkpoint"),
    Update("a tracker", {}, {"spec.tracking.wandb": {"project": "a"}}, "spec.tracking"),
    Update("another image", {"spec.cluster.image": "a:1"}, {"spec.cluster.image": "a:2"}, "spec.cluster"),
    Update("more nodes", GPUS, {"spec.cluster.nodes": 3}, "spec.cluster"),
    Update(
        "a node label",
        {"spec.cluster.nodeSelector": {"a": "b"}},
        {"spec.cluster.nodeSelector": {"a": "c"}},
        "spec.cluster",
    ),
    Update("a toleration", {}, {"spec.cluster.tolerations": [{"operator": "Exists"}]}, "spec.cluster"),
    Update(
        "deep in an override",
        {_POD: {"dnsConfig": {"searches": ["a"]}}},
        {_POD: {"dnsConfig": {"searches": ["b"]}}},
        "spec.cluster",
    ),
    Update(
        "one override more",
        {_POD: {"hostNetwork": True}},
        {_POD: {"hostNetwork": True, "hostPID": True}},
        "spec.cluster",
    ),
    *(
        Update(f"more memory in phase {phase}", {}, {"spec.cluster.memoryPerNode": "8Gi"}, None, phase)
        for phase in (None, "Pending", "Restarting", "Suspending", "Suspended")
    ),
    *(
        Update(f"more memory in phase {phase}", {}, {"spec.cluster.memoryPerNode": "8Gi"}, "spec.cluster", phase)
        for phase in ("Starting", "Running", "Succeeded", "Failed")
    ),
    Update(
        "more memory for a job that is suspended with it",
        {},
        {"spec.cluster.memoryPerNode": "8Gi", "spec.suspend": True},
        None,
    ),
    Update("a tracker while it waits", {}, {"spec.tracking.wandb": {"project": "a"}}, None, "Pending"),
    Update(
        "all memory settings while it waits",
        GPUS,
        {
            "spec.rollout": {"offload": ["kv_cache"], "gpuMemoryFraction": 0.4, "tensorParallelSize": 2},
            "spec.trainer": {"tokensPerMicroBatch": 4096, "recompute": "full", "tensorParallelSize": 2}
            | {"contextParallelSize": 2, "expertParallelSize": 4},
        },
        None,
        "Restarting",
    ),
    Update("less memory for vLLM", {}, {"spec.rollout.gpuMemoryFraction": 0.4}, "spec.rollout.gpuMemoryFraction"),
    Update("nothing offloaded", GPUS, {"spec.rollout.offload": []}, "spec.rollout.offload"),
    Update("smaller micro-batches", {}, {"spec.trainer.tokensPerMicroBatch": 4096}, "spec.trainer.tokensPerMicroBatch"),
    Update("another model while it waits", {}, {"spec.model.uri": "hf://a/b"}, "spec.model", "Pending"),
    Update("another seed while it waits", {}, {"spec.trainer.seed": 5}, "spec.trainer", "Pending"),
    Update("more steps", {}, {"spec.trainer.steps": 300}, None),
    Update(
        "steps if all else is set",
        {"spec.trainer": {"precision": "fp32", "seed": 3}, _POD: {"a": [{}]}},
        {"spec.trainer.steps": 3},
        None,
    ),
    Update("suspend", {}, {"spec.suspend": True}, None),
    Update("resume", {"spec.suspend": True}, {"spec.suspend": False}, None),
    Update("retries", {}, {"spec.backoffLimit": 9}, None),
    Update("rules for retries", {}, {"spec.retryPolicy": [{"exitCode": 75, "action": "Ignore"}]}, None),
    Update(
        "deadlines",
        {"spec.activeDeadlineSeconds": 5},
        {"spec.activeDeadlineSeconds": None, "spec.startDeadlineSeconds": 7},
        None,
    ),
    Update("ttl", {}, {"spec.ttlSecondsAfterFinished": 0}, None),
    Update(
        "the deletion policy",
        {"spec.checkpoint.uri": "s3://a/b"},
        {"spec.checkpoint.deletionPolicy": "Delete"},
        None,
    ),
    Update(
        "a default written out",
        {},
        {"spec.cluster.gpuResource": "nvidia.com/gpu", "spec.cluster.tolerations": []},
        None,
    ),
    Update("labels", {}, {"metadata.labels": {"kueue.x-k8s.io/queue-name": "a"}}, None),
]
