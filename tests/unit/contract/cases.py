"""Manifests that keep and break each rule. The unit tests and the API server's tests both use all of them."""

from __future__ import annotations

from typing import Any

from unit.contract.algorithm_cases import ALGORITHM_CASES
from unit.contract.cluster_cases import CLUSTER_CASES
from unit.contract.environment_cases import ENVIRONMENT_CASES
from unit.contract.manifests import DPO, EVAL, GPUS, HUB, MLFLOW, SFT, VOLUMES, Case, Changes
from unit.contract.publish_cases import PUBLISH_CASES
from unit.contract.quantization_cases import QUANTIZATION_CASES
from unit.contract.reward_cases import REWARD_CASES
from unit.contract.sampling_cases import SAMPLING_CASES
from unit.contract.server_cases import SERVER_CASES


def _not_with_sft(name: str, value: Any, around: Changes | None = None) -> Case:
    field = f"spec.rollout.{name}"
    return Case(
        f"{name} only with grpo",
        bad=SFT | (around or {}) | {field: value},
        good=(around or {}) | {field: value},
        field=field,
        hint=f"Remove rollout.{name}",
    )


def _uri(path: str, suffix: str = "", around: Changes | None = None) -> list[Case]:
    around = around or {}
    return [
        Case(
            f"{path} is a URI",
            around | {path: f"out/base{suffix}"},
            around | {path: f"file:/out/base{suffix}"},
            path,
            "local path as file:PATH",
        ),
        Case(
            f"{path} with a host in file://",
            around | {path: f"file://out/x{suffix}"},
            around | {path: f"file:/out/x{suffix}"},
            path,
            "local path as file:PATH",
        ),
        Case(
            f"{path} without credentials",
            around | {path: f"{'https' if 'tracking' in path else 's3'}://me:hunter2@store/x{suffix}"},
            around | {path: f"file:///me@home/x{suffix}"},
            path,
            "Remove them from the URI",
        ),
    ]


HELD = {"name": "held", "uri": "file:out/held_out.jsonl"}

CASES = [
    *_uri("spec.model.uri"),
    *_uri("spec.adapter.initFrom"),
    *_uri("spec.data.train.uri", ".jsonl"),
    *_uri("spec.data.eval.uri", ".csv", EVAL),
    *_uri("spec.data.chatTemplateFile", ".jinja"),
    *_uri("spec.checkpoint.uri", around=VOLUMES),
    *_uri("spec.reward.source.uri", around={"spec.reward": {"function": "m:f"}}),
    *_uri("spec.tracking.mlflow.trackingUri", around=MLFLOW),
    Case(
        "no presigned URLs",
        {"spec.data.train.uri": "s3://a/b.jsonl?X-Amz-Signature=0123456789&x=.jsonl"},
        {"spec.data.train.uri": "s3://a/b?c=1.jsonl"},
        "spec.data.train.uri",
        "Remove them",
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
        "Remove revision",
    ),
    Case(
        "all-linear alone",
        {"spec.adapter.targetModules": ["all-linear", "q_proj"]},
        {"spec.adapter.targetModules": ["q_proj", "k_proj"]},
        "spec.adapter.targetModules",
        "Write [all-linear]",
    ),
    Case(
        "an expert's rank is at most the rank",
        {"spec.adapter.rank": 8, "spec.adapter.expertRank": 9},
        {"spec.adapter.rank": 8, "spec.adapter.expertRank": 8},
        "spec.adapter.expertRank",
        "Lower expertRank, or raise rank.",
    ),
    Case(
        "all-linear is not excluded",
        {"spec.adapter.targetModules": ["q_proj"], "spec.adapter.excludeModules": ["all-linear"]},
        {"spec.adapter.excludeModules": ["*.layers.0.*"]},
        "spec.adapter.excludeModules",
        "Name the modules",
    ),
    Case(
        "no name in both lists",
        {"spec.adapter.targetModules": ["q_proj", "o_proj"], "spec.adapter.excludeModules": ["o_proj"]},
        {"spec.adapter.targetModules": ["q_proj"], "spec.adapter.excludeModules": ["o_proj"]},
        "spec.adapter.excludeModules",
        "Remove the name from one",
    ),
    Case(
        "DoRA only with sft",
        {"spec.adapter.dora": True},
        SFT | {"spec.adapter.dora": True, "spec.adapter.rslora": True},
        "spec.adapter.dora",
        "Remove dora",
    ),
    Case(
        "DoRA without rewards of evaluations",
        SFT | {"spec.adapter.dora": True, "spec.data.evals": [HELD | {"reward": {"type": "exact"}}]},
        SFT | {"spec.adapter.dora": True, "spec.data.evals": [HELD]},
        "spec.adapter.dora",
        "Remove the reward of data.evals",
    ),
    Case(
        "DoRA not with Megatron",
        SFT | {"spec.adapter.dora": True, "spec.trainer.backend": "megatron"},
        SFT | {"spec.adapter.dora": True, "spec.trainer.backend": "fsdp"},
        "spec.adapter.dora",
        "set it to fsdp",
    ),
    *QUANTIZATION_CASES,
    *SERVER_CASES,
    *ALGORITHM_CASES,
    Case(
        "one reward, not two",
        {"spec.reward": {"type": "exact", "function": "m:f"}},
        {"spec.reward": {"function": "m:f", "timeoutSeconds": 3}},
        "spec.reward.type",
        "Keep one of them",
    ),
    Case(
        "one reward, not none",
        {"spec.reward": {}},
        {"spec.reward": {"type": "math_verify", "timeoutSeconds": 3}},
        "spec.reward.type",
        "Set type",
    ),
    Case(
        "pattern only with regex",
        {"spec.reward": {"type": "exact", "pattern": "x"}},
        {"spec.reward": {"type": "regex", "pattern": "x"}},
        "spec.reward.pattern",
        "Remove pattern",
    ),
    Case(
        "pattern not with a function",
        {"spec.reward": {"function": "m:f", "pattern": "x"}},
        {"spec.reward": {"function": "m:f"}},
        "spec.reward.pattern",
        "Remove pattern",
    ),
    Case(
        "regex needs a pattern",
        {"spec.reward": {"type": "regex"}},
        {"spec.reward": {"type": "numeric"}},
        "spec.reward.pattern",
        "Add a pattern",
    ),
    Case(
        "tolerance only with numeric",
        {"spec.reward": {"type": "exact", "tolerance": 0.1}},
        {"spec.reward": {"type": "numeric", "tolerance": 0.1}},
        "spec.reward.tolerance",
        "Remove tolerance",
    ),
    Case(
        "data files have a known ending",
        {"spec.data.train.uri": "s3://a/train.json"},
        {"spec.data.train.uri": "s3://a/train.PARQUET"},
        "spec.data.train.uri",
        "Convert the data",
    ),
    Case(
        "held-out files have a known ending",
        EVAL | {"spec.data.eval.uri": "s3://a/"},
        EVAL | {"spec.data.eval.uri": "s3://a/b.csv"},
        "spec.data.eval.uri",
        "Convert the data",
    ),
    Case(
        "subset only with the hub",
        {"spec.data.train.subset": "main"},
        HUB | {"spec.data.train.subset": "main"},
        "spec.data.train.subset",
        "Remove",
    ),
    Case(
        "split only with the hub",
        {"spec.data.train.split": "train"},
        HUB | {"spec.data.train.split": "train"},
        "spec.data.train.split",
        "Remove",
    ),
    Case(
        "prompt and answer are two columns",
        {"spec.data.train.answerField": "prompt"},
        {"spec.data.train.answerField": "solution"},
        "spec.data.train.answerField",
        "Name the column",
    ),
    *(
        Case(
            f"{answer} of another column than the prompt",
            DPO | {"spec.data.train.promptField": "text", f"spec.data.train.{answer}": "text"},
            DPO | {"spec.data.train.promptField": "text", f"spec.data.train.{answer}": "better"},
            f"spec.data.train.{answer}",
            "Name the columns",
        )
        for answer in ("chosenField", "rejectedField")
    ),
    Case(
        "warm-up within the steps",
        {"spec.trainer": {"steps": 10, "warmupSteps": 11}},
        {"spec.trainer": {"steps": 10, "warmupSteps": 10}},
        "spec.trainer.warmupSteps",
        "Lower warmupSteps",
    ),
    Case(
        "warm-up within the default steps",
        {"spec.trainer.warmupSteps": 201},
        {"spec.trainer.warmupSteps": 200},
        "spec.trainer.warmupSteps",
        "Lower",
    ),
    Case("grpo needs a reward", {"spec.reward": None}, SFT, "spec.reward", "Add a reward"),
    Case(
        "sft has no reward",
        {"spec.algorithm.type": "sft"},
        {"spec.algorithm.type": "grpo"},
        "spec.reward",
        "Remove reward",
    ),
    *REWARD_CASES,
    *ENVIRONMENT_CASES,
    Case(
        "tolerance of log-probabilities only with grpo",
        SFT | {"spec.rollout.logprobTolerance": 0.1},
        {"spec.rollout.logprobTolerance": 0.1},
        "spec.rollout.logprobTolerance",
        "Remove rollout.logprobTolerance",
    ),
    _not_with_sft("temperature", 0.7),
    _not_with_sft("topP", 0.9),
    _not_with_sft("topK", 50),
    _not_with_sft("minP", 0.1),
    _not_with_sft("stop", ["</answer>"]),
    _not_with_sft("adapterSync", "disk"),
    _not_with_sft("verifySync", True),
    _not_with_sft("offload", ["kv_cache"], GPUS),
    _not_with_sft("gpuMemoryFraction", 0.4, GPUS),
    _not_with_sft("tensorParallelSize", 2, GPUS),
    Case(
        "updates share the prompts",
        {"spec.algorithm.updatesPerStep": 3},
        {"spec.algorithm.updatesPerStep": 3, "spec.rollout.promptsPerStep": 48},
        "spec.algorithm.updatesPerStep",
        "Use a divisor",
    ),
    Case(
        "a sample fits a micro batch",
        {"spec.rollout.maxResponseTokens": 16_000, "spec.trainer.tokensPerMicroBatch": 16_384},
        {"spec.rollout.maxResponseTokens": 15_872, "spec.trainer.tokensPerMicroBatch": 16_384},
        "spec.trainer.tokensPerMicroBatch",
        "Raise tokensPerMicroBatch",
    ),
    Case(
        "the trainer splits all GPUs",
        GPUS | {"spec.trainer.tensorParallelSize": 3},
        GPUS | {"spec.trainer.tensorParallelSize": 4},
        "spec.trainer.tensorParallelSize",
        "Lower trainer.tensorParallelSize",
    ),
    Case(
        "all GPUs share contexts",
        GPUS | {"spec.trainer.contextParallelSize": 4, "spec.trainer.tensorParallelSize": 4},
        GPUS | {"spec.trainer.contextParallelSize": 2, "spec.trainer.tensorParallelSize": 2},
        "spec.trainer.contextParallelSize",
        "Lower trainer.contextParallelSize",
    ),
    Case(
        "fsdp shares no context",
        {"spec.trainer.contextParallelSize": 2, "spec.trainer.backend": "fsdp"},
        {"spec.trainer.contextParallelSize": 2, "spec.trainer.tensorParallelSize": 2},
        "spec.trainer.contextParallelSize",
        "Remove trainer.contextParallelSize, or with model.quantization none set trainer.backend: megatron",
    ),
    Case(
        "adapters are split over the trainer's GPUs",
        GPUS | {"spec.trainer.tensorParallelSize": 4, "spec.adapter.rank": 6},
        GPUS | {"spec.trainer.tensorParallelSize": 4, "spec.adapter.rank": 12},
        "spec.adapter.rank",
        "Use a multiple",
    ),
    Case(
        "experts are shared by all GPUs",
        GPUS | {"spec.trainer.expertParallelSize": 3},
        GPUS | {"spec.trainer.expertParallelSize": 4},
        "spec.trainer.expertParallelSize",
        "Lower trainer.expertParallelSize",
    ),
    Case(
        "fsdp shares no experts",
        {"spec.trainer": {"backend": "fsdp", "expertParallelSize": 2}},
        {"spec.trainer": {"backend": "fsdp", "expertParallelSize": 1}},
        "spec.trainer.expertParallelSize",
        "Remove expertParallelSize",
    ),
    Case(
        "one group of workers holds the other",
        GPUS | {"spec.trainer": {"expertParallelSize": 4, "tensorParallelSize": 3}},
        GPUS | {"spec.trainer": {"expertParallelSize": 4, "tensorParallelSize": 2}},
        "spec.trainer.expertParallelSize",
        "powers of 2",
    ),
    Case(
        "vLLM splits all GPUs",
        GPUS | {"spec.rollout.tensorParallelSize": 5},
        GPUS | {"spec.rollout.tensorParallelSize": 2},
        "spec.rollout.tensorParallelSize",
        "Lower rollout.tensorParallelSize",
    ),
    Case(
        "vLLM is not split on CPU",
        {"spec.rollout.tensorParallelSize": 2},
        {"spec.trainer.tensorParallelSize": 2},
        "spec.rollout.tensorParallelSize",
        "Remove rollout.tensorParallelSize",
    ),
    Case(
        "offload on a CPU job",
        {"spec.rollout.offload": ["kv_cache"]},
        GPUS | {"spec.rollout.offload": ["kv_cache"]},
        "spec.rollout.offload",
        "Remove rollout.offload",
    ),
    Case(
        "no bf16 on CPU",
        {"spec.trainer.precision": "bf16"},
        GPUS | {"spec.trainer.precision": "bf16"},
        "spec.trainer.precision",
        "Remove trainer.precision",
    ),
    Case(
        "files of a pod are not deleted later",
        VOLUMES | {"spec.checkpoint": {"uri": "file:///mnt/a", "deletionPolicy": "Delete"}},
        {"spec.checkpoint": {"uri": "pvc://a/b", "deletionPolicy": "Delete"}},
        "spec.checkpoint.deletionPolicy",
        "Set deletionPolicy: Retain",
    ),
    Case(
        "a claim has a name",
        {"spec.model.uri": "pvc:///base"},
        {"spec.model.uri": "pvc://models/base"},
        "spec.model.uri",
        "local path as file:PATH",
    ),
    Case(
        "data on a claim has a known ending",
        {"spec.data.train.uri": "pvc://data/train"},
        {"spec.data.train.uri": "pvc://data/train.jsonl"},
        "spec.data.train.uri",
        "Convert the data",
    ),
    Case(
        "a name is not too long",
        {"metadata.name": "a" * 43},
        {"metadata.name": "a" * 42},
        "metadata.name",
        "Use another name",
    ),
    Case(
        "a name begins with a letter",
        {"metadata.name": "8b-math"},
        {"metadata.name": "math-8b"},
        "metadata.name",
        "Use another name",
    ),
    *SAMPLING_CASES,
    *PUBLISH_CASES,
    *CLUSTER_CASES,
    Case("a name has no dots", {"metadata.name": "a.b"}, {"metadata.name": "a-b"}, "metadata.name", "Use another name"),
]
