"""Manifests that keep and break each rule; the unit tests and the API server's tests both go through all of them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

Changes = dict[str, Any]
"""Dotted path -> value; None takes the field out."""

SMALLEST: dict[str, Any] = {
    "apiVersion": "lorarl.io/v1alpha1",
    "kind": "LoRARLJob",
    "metadata": {"name": "smallest"},
    "spec": {
        "model": {"uri": "file:out/base"},
        "adapter": {"targetModules": ["all-linear"]},
        "reward": {"type": "exact"},
        "data": {"train": {"uri": "file:out/train.jsonl"}},
        "checkpoint": {"uri": "file:out/checkpoints"},
    },
}


def manifest(changes: Changes | None = None) -> dict[str, Any]:
    """The smallest good manifest with `changes`."""
    return changed(copy.deepcopy(SMALLEST), changes or {})


def changed(document: dict[str, Any], changes: Changes) -> dict[str, Any]:
    """`document` itself, with `changes`."""
    for path, value in changes.items():
        *above, last = path.split(".")
        inner = document
        for key in above:
            inner = inner.setdefault(key, {})
        if value is None:
            inner.pop(last, None)
        else:
            inner[last] = copy.deepcopy(value)
    return document


@dataclass(frozen=True)
class Case:
    """One rule: what breaks it, what keeps it, which field a user is told to mend, and a part of how."""

    name: str
    bad: Changes
    good: Changes
    field: str
    hint: str


SFT = {"spec.algorithm": {"type": "sft"}, "spec.reward": None}
HUB = {"spec.data.train": {"uri": "hf://openai/gsm8k"}}
GPUS = {"spec.cluster": {"nodes": 2, "gpusPerNode": 4}}
EVAL = {"spec.data.eval": {"uri": "file:out/held_out.jsonl"}}
MLFLOW = {"spec.tracking.mlflow": {"trackingUri": "https://mlflow.example.com", "experiment": "x"}}


def _only_grpo(name: str, value: Any) -> Case:
    return Case(
        f"{name} only with grpo",
        bad=SFT | {f"spec.algorithm.{name}": value},
        good={f"spec.algorithm.{name}": value},
        field=f"spec.algorithm.{name}",
        hint=f"remove {name}, or set algorithm.type to grpo",
    )


def _uri(path: str, suffix: str = "", around: Changes | None = None) -> list[Case]:
    around = around or {}
    return [
        Case(
            f"{path} is a URI",
            around | {path: f"out/base{suffix}"},
            around | {path: f"file:/out/base{suffix}"},
            path,
            "becomes file:PATH",
        ),
        Case(
            f"{path} with a host in file://",
            around | {path: f"file://out/x{suffix}"},
            around | {path: f"file:out/x{suffix}"},
            path,
            "becomes",
        ),
        Case(
            f"{path} without credentials",
            around | {path: f"{'https' if 'tracking' in path else 's3'}://me:hunter2@store/x{suffix}"},
            around | {path: f"file:///me@home/x{suffix}"},
            path,
            "take them out of the URI",
        ),
    ]


def _toleration(field: str, bad: Changes, good: Changes, hint: str) -> Case:
    """A rule of one toleration, which stands second in the list."""
    first = {"operator": "Exists", "effect": "NoSchedule"}
    return Case(
        f"{field} of a toleration",
        {"spec.cluster.tolerations": [first, bad]},
        {"spec.cluster.tolerations": [first, good]},
        f"spec.cluster.tolerations[1].{field}",
        hint,
    )


CASES = [
    *_uri("spec.model.uri"),
    *_uri("spec.adapter.initFrom"),
    *_uri("spec.data.train.uri", ".jsonl"),
    *_uri("spec.data.eval.uri", ".csv", EVAL),
    *_uri("spec.checkpoint.uri"),
    *_uri("spec.tracking.mlflow.trackingUri", around=MLFLOW),
    Case(
        "no presigned URLs",
        {"spec.data.train.uri": "s3://a/b.jsonl?X-Amz-Signature=0123456789&x=.jsonl"},
        {"spec.data.train.uri": "s3://a/b?c=1.jsonl"},
        "spec.data.train.uri",
        "take them out",
    ),
    Case(
        "the hub's URL is not hf://",
        {"spec.model.uri": "https://huggingface.co/a/b"},
        {"spec.model.uri": "hf://a/b"},
        "spec.model.uri",
        "file:PATH",
    ),
    Case(
        "revision only with the hub",
        {"spec.model.revision": "main"},
        {"spec.model.uri": "hf://a/b", "spec.model.revision": "main"},
        "spec.model.revision",
        "remove revision",
    ),
    Case(
        "all-linear alone",
        {"spec.adapter.targetModules": ["all-linear", "q_proj"]},
        {"spec.adapter.targetModules": ["q_proj", "k_proj"]},
        "spec.adapter.targetModules",
        "write [all-linear]",
    ),
    Case(
        "all-linear is not excluded",
        {"spec.adapter.targetModules": ["q_proj"], "spec.adapter.excludeModules": ["all-linear"]},
        {"spec.adapter.excludeModules": ["*.layers.0.*"]},
        "spec.adapter.excludeModules",
        "name the modules",
    ),
    Case(
        "no name in both lists",
        {"spec.adapter.targetModules": ["q_proj", "o_proj"], "spec.adapter.excludeModules": ["o_proj"]},
        {"spec.adapter.targetModules": ["q_proj"], "spec.adapter.excludeModules": ["o_proj"]},
        "spec.adapter.excludeModules",
        "take it out of one",
    ),
    _only_grpo("groupSize", 4),
    _only_grpo("clipRange", 0.2),
    _only_grpo("klCoefficient", 0.01),
    _only_grpo("updatesPerStep", 2),
    Case(
        "one reward, not two",
        {"spec.reward": {"type": "exact", "function": "m:f"}},
        {"spec.reward": {"function": "m:f", "timeoutSeconds": 3}},
        "spec.reward.type",
        "keep type",
    ),
    Case(
        "one reward, not none",
        {"spec.reward": {}},
        {"spec.reward": {"type": "math_verify", "timeoutSeconds": 3}},
        "spec.reward.type",
        "keep type",
    ),
    Case(
        "pattern only with regex",
        {"spec.reward": {"type": "exact", "pattern": "x"}},
        {"spec.reward": {"type": "regex", "pattern": "x"}},
        "spec.reward.pattern",
        "remove pattern",
    ),
    Case(
        "pattern not with a function",
        {"spec.reward": {"function": "m:f", "pattern": "x"}},
        {"spec.reward": {"function": "m:f"}},
        "spec.reward.pattern",
        "remove pattern",
    ),
    Case(
        "regex needs a pattern",
        {"spec.reward": {"type": "regex"}},
        {"spec.reward": {"type": "numeric"}},
        "spec.reward.pattern",
        "add one",
    ),
    Case(
        "tolerance only with numeric",
        {"spec.reward": {"type": "exact", "tolerance": 0.1}},
        {"spec.reward": {"type": "numeric", "tolerance": 0.1}},
        "spec.reward.tolerance",
        "remove tolerance",
    ),
    Case(
        "data files have a known ending",
        {"spec.data.train.uri": "s3://a/train.json"},
        {"spec.data.train.uri": "s3://a/train.PARQUET"},
        "spec.data.train.uri",
        "convert the data",
    ),
    Case(
        "held-out files have a known ending",
        EVAL | {"spec.data.eval.uri": "s3://a/"},
        EVAL | {"spec.data.eval.uri": "s3://a/b.csv"},
        "spec.data.eval.uri",
        "convert the data",
    ),
    Case(
        "subset only with the hub",
        {"spec.data.train.subset": "main"},
        HUB | {"spec.data.train.subset": "main"},
        "spec.data.train.subset",
        "remove",
    ),
    Case(
        "split only with the hub",
        {"spec.data.train.split": "train"},
        HUB | {"spec.data.train.split": "train"},
        "spec.data.train.split",
        "remove",
    ),
    Case(
        "prompt and answer are two columns",
        {"spec.data.train.answerField": "prompt"},
        {"spec.data.train.answerField": "solution"},
        "spec.data.train.answerField",
        "name the column",
    ),
    Case(
        "warm-up within the steps",
        {"spec.trainer": {"steps": 10, "warmupSteps": 11}},
        {"spec.trainer": {"steps": 10, "warmupSteps": 10}},
        "spec.trainer.warmupSteps",
        "lower warmupSteps",
    ),
    Case(
        "warm-up within the default steps",
        {"spec.trainer.warmupSteps": 201},
        {"spec.trainer.warmupSteps": 200},
        "spec.trainer.warmupSteps",
        "lower",
    ),
    Case("grpo needs a reward", {"spec.reward": None}, SFT, "spec.reward", "add one"),
    Case(
        "sft takes no reward",
        {"spec.algorithm.type": "sft"},
        {"spec.algorithm.type": "grpo"},
        "spec.reward",
        "remove reward",
    ),
    Case(
        "tolerance of log-probabilities only with grpo",
        SFT | {"spec.rollout.logprobTolerance": 0.1},
        {"spec.rollout.logprobTolerance": 0.1},
        "spec.rollout.logprobTolerance",
        "remove rollout.logprobTolerance",
    ),
    Case(
        "updates share the prompts",
        {"spec.algorithm.updatesPerStep": 3},
        {"spec.algorithm.updatesPerStep": 3, "spec.rollout.promptsPerStep": 48},
        "spec.algorithm.updatesPerStep",
        "choose a divisor",
    ),
    Case(
        "a sample fits a micro batch",
        {"spec.rollout.maxResponseTokens": 16_000},
        {"spec.rollout.maxResponseTokens": 15_872},
        "spec.trainer.tokensPerMicroBatch",
        "raise tokensPerMicroBatch",
    ),
    Case(
        "the trainer splits all GPUs",
        GPUS | {"spec.trainer.tensorParallelSize": 3},
        GPUS | {"spec.trainer.tensorParallelSize": 4},
        "spec.trainer.tensorParallelSize",
        "lower trainer.tensorParallelSize",
    ),
    Case(
        "adapters are split over the trainer's GPUs",
        GPUS | {"spec.trainer.tensorParallelSize": 4, "spec.adapter.rank": 6},
        GPUS | {"spec.trainer.tensorParallelSize": 4, "spec.adapter.rank": 12},
        "spec.adapter.rank",
        "choose a multiple",
    ),
    Case(
        "vLLM splits all GPUs",
        GPUS | {"spec.rollout.tensorParallelSize": 5},
        GPUS | {"spec.rollout.tensorParallelSize": 2},
        "spec.rollout.tensorParallelSize",
        "lower rollout.tensorParallelSize",
    ),
    Case(
        "vLLM is not split on CPU",
        {"spec.rollout.tensorParallelSize": 2},
        {"spec.trainer.tensorParallelSize": 2},
        "spec.rollout.tensorParallelSize",
        "remove rollout.tensorParallelSize",
    ),
    Case(
        "offload on a CPU job",
        {"spec.rollout.offload": ["kv_cache"]},
        GPUS | {"spec.rollout.offload": ["kv_cache"]},
        "spec.rollout.offload",
        "remove rollout.offload",
    ),
    Case(
        "no bf16 on CPU",
        {"spec.trainer.precision": "bf16"},
        GPUS | {"spec.trainer.precision": "bf16"},
        "spec.trainer.precision",
        "remove trainer.precision",
    ),
    Case(
        "a ServiceAccount of the user is not annotated",
        {
            "spec.cluster": {
                "serviceAccountName": "mine",
                "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn"},
            }
        },
        {"spec.cluster": {"serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn"}}},
        "spec.cluster.serviceAccountAnnotations",
        "annotate that ServiceAccount yourself",
    ),
    Case(
        "annotations have keys that Kubernetes takes",
        {"spec.cluster.serviceAccountAnnotations": {"a b": "c"}},
        {"spec.cluster.serviceAccountAnnotations": {"iam.gke.io/gcp_service.Account": "any text: @/"}},
        "spec.cluster.serviceAccountAnnotations",
        "mend the key",
    ),
    Case(
        "labels have keys that Kubernetes takes",
        {"spec.cluster.nodeSelector": {"/pool": "a"}},
        {"spec.cluster.nodeSelector": {"example.com/pool": "", "pool": "h200"}},
        "spec.cluster.nodeSelector",
        "mend the key",
    ),
    Case(
        "CPUs are a quantity",
        {"spec.cluster.cpusPerNode": "8 cores"},
        {"spec.cluster.cpusPerNode": "7500m"},
        "spec.cluster.cpusPerNode",
        "write e.g. 8",
    ),
    Case(
        "the head's CPUs are a quantity",
        {"spec.cluster.head.cpus": "0"},
        {"spec.cluster.head.cpus": 4},
        "spec.cluster.head.cpus",
        "write e.g. 8",
    ),
    Case(
        "rdma only with GPUs",
        {"spec.cluster.rdma": {"resourceName": "rdma/hca"}},
        {"spec.cluster": {"gpusPerNode": 8, "rdma": {"resourceName": "rdma/hca"}}},
        "spec.cluster.rdma",
        "remove rdma",
    ),
    Case(
        "files of a pod are not deleted later",
        {"spec.checkpoint.deletionPolicy": "Delete"},
        {"spec.checkpoint": {"uri": "s3://a/b", "deletionPolicy": "Delete"}},
        "spec.checkpoint.deletionPolicy",
        "set deletionPolicy: Retain",
    ),
    Case(
        "a claim has a name",
        {"spec.model.uri": "pvc:///base"},
        {"spec.model.uri": "pvc://models/base"},
        "spec.model.uri",
        "becomes file:PATH",
    ),
    Case(
        "data on a claim has a known ending",
        {"spec.data.train.uri": "pvc://data/train"},
        {"spec.data.train.uri": "pvc://data/train.jsonl"},
        "spec.data.train.uri",
        "convert the data",
    ),
    _toleration("key", {"value": "a"}, {"key": "nvidia.com/gpu", "value": "a"}, "add the taint's key"),
    _toleration("value", {"operator": "Exists", "value": "a"}, {"operator": "Exists"}, "remove value"),
    _toleration(
        "tolerationSeconds",
        {"key": "a", "tolerationSeconds": 1},
        {"key": "a", "effect": "NoExecute", "tolerationSeconds": 0},
        "remove tolerationSeconds",
    ),
    Case(
        "a name is not too long",
        {"metadata.name": "a" * 43},
        {"metadata.name": "a" * 42},
        "metadata.name",
        "shorten or rename",
    ),
    Case(
        "a name begins with a letter",
        {"metadata.name": "8b-math"},
        {"metadata.name": "math-8b"},
        "metadata.name",
        "shorten or rename",
    ),
    Case(
        "a name has no dots", {"metadata.name": "a.b"}, {"metadata.name": "a-b"}, "metadata.name", "shorten or rename"
    ),
]
