"""The rules of how a job is laid out over its GPUs: what is split, shared, freed and computed there."""

from __future__ import annotations

from collections.abc import Iterator

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.algorithm_types import FROM_PAIRS, is_one_of

_PAIRS = is_one_of("self.algorithm.type", FROM_PAIRS)
_SPLITS = ("trainer.tensorParallelSize", "trainer.expertParallelSize", "rollout.tensorParallelSize")
_WITHIN_A_NODE = (
    "divide cluster.gpusPerNode beside cluster.minNodes: no group of workers may span machines that come and go"
)
_FIXED = "Lower {}, or remove cluster.minNodes so that the job always has all its nodes."
_NOT_ELASTIC = "!has(self.cluster.minNodes) || self.cluster.minNodes == self.cluster.nodes"
_TENSOR = "(has(self.trainer.tensorParallelSize) ? self.trainer.tensorParallelSize : 1)"


def _splits_all_gpus(field: str) -> Rule:
    return Rule(
        field,
        f"self.cluster.gpusPerNode == 0 || !has(self.{field}) || "
        f"(self.cluster.nodes * self.cluster.gpusPerNode) % self.{field} == 0",
        "divide cluster.nodes x cluster.gpusPerNode",
        f"Lower {field}, or use more GPUs. 1 always fits.",
    )


def _shares_context() -> Iterator[Rule]:
    one = "!has(self.trainer.contextParallelSize) || self.trainer.contextParallelSize == 1"
    yield Rule(
        "trainer.contextParallelSize",
        f"self.cluster.gpusPerNode == 0 || {one} || "
        f"(self.cluster.nodes * self.cluster.gpusPerNode) % (self.trainer.contextParallelSize * {_TENSOR}) == 0",
        "divide cluster.nodes x cluster.gpusPerNode, and so must its product with trainer.tensorParallelSize",
        "Lower trainer.contextParallelSize, or use more GPUs. 1 always fits.",
    )
    yield Rule(
        "trainer.contextParallelSize",
        f"{one} || !has(self.trainer.backend) || self.trainer.backend == 'megatron'",
        "be absent or 1 with trainer.backend fsdp, whose layers have the tokens of whole samples",
        "Remove trainer.contextParallelSize, or with model.quantization none set trainer.backend: megatron.",
    )


def _elastic() -> Iterator[Rule]:
    """With `cluster.minNodes`, only data parallelism may span machines: any number of them is then a layout."""
    fixed = f"{_NOT_ELASTIC} || self.cluster.gpusPerNode == 0"
    for field in _SPLITS:
        yield Rule(
            field,
            f"{fixed} || !has(self.{field}) || self.cluster.gpusPerNode % self.{field} == 0",
            _WITHIN_A_NODE,
            _FIXED.format(field),
        )
    yield Rule(
        "trainer.contextParallelSize",
        f"{fixed} || !has(self.trainer.contextParallelSize) || "
        f"self.cluster.gpusPerNode % (self.trainer.contextParallelSize * {_TENSOR}) == 0",
        f"{_WITHIN_A_NODE}; so must its product with trainer.tensorParallelSize",
        _FIXED.format("trainer.contextParallelSize"),
    )
    for group, pods in (("rollout.separateEngines", "engines"), ("cluster.environments", "their pods")):
        yield Rule(
            "cluster.minNodes",
            f"{_NOT_ELASTIC} || !has(self.{group})",
            f"be cluster.nodes beside {group}: no test has tried {pods} beside nodes that come and go",
            f"Remove cluster.minNodes or {group}.",
        )


LAYOUT_RULES: tuple[Rule, ...] = (
    Rule(
        "trainer.tokensPerMicroBatch",
        "!has(self.trainer.tokensPerMicroBatch) || self.trainer.tokensPerMicroBatch >= "
        f"self.rollout.maxPromptTokens + ({_PAIRS} ? 2 : 1) * self.rollout.maxResponseTokens",
        "be at least rollout.maxPromptTokens + rollout.maxResponseTokens, the longest sample; for dpo, with the pair's "
        "second answer",
        "Raise tokensPerMicroBatch, or lower the two limits.",
    ),
    _splits_all_gpus("trainer.tensorParallelSize"),
    *_shares_context(),
    Rule(
        "adapter.rank",
        "!has(self.trainer.tensorParallelSize) || self.adapter.rank % self.trainer.tensorParallelSize == 0",
        "be a multiple of trainer.tensorParallelSize, over which adapters are split",
        "Use a multiple, such as 32.",
    ),
    _splits_all_gpus("trainer.expertParallelSize"),
    Rule(
        "trainer.expertParallelSize",
        "!has(self.trainer.expertParallelSize) || self.trainer.expertParallelSize == 1 || "
        "!has(self.trainer.backend) || self.trainer.backend == 'megatron'",
        "be 1 with trainer.backend fsdp, which trains no adapters on experts",
        "Remove expertParallelSize, or set trainer.backend: megatron.",
    ),
    Rule(
        "trainer.expertParallelSize",
        "!has(self.trainer.expertParallelSize) || !has(self.trainer.tensorParallelSize) || "
        "self.trainer.expertParallelSize % self.trainer.tensorParallelSize == 0 || "
        "self.trainer.tensorParallelSize % self.trainer.expertParallelSize == 0",
        "be a multiple of trainer.tensorParallelSize or divide it, since one group of workers holds the other",
        "Set both to powers of 2.",
    ),
    _splits_all_gpus("rollout.tensorParallelSize"),
    Rule(
        "rollout.tensorParallelSize",
        "self.cluster.gpusPerNode > 0 || !has(self.rollout.tensorParallelSize) || self.rollout.tensorParallelSize == 1",
        "be 1 for a CPU job (cluster.gpusPerNode 0)",
        "Remove rollout.tensorParallelSize, or set cluster.gpusPerNode.",
    ),
    Rule(
        "rollout.offload",
        "self.cluster.gpusPerNode > 0 || !has(self.rollout.offload) || size(self.rollout.offload) == 0",
        "be empty for a CPU job (cluster.gpusPerNode 0)",
        "Remove rollout.offload, or set cluster.gpusPerNode.",
    ),
    Rule(
        "trainer.precision",
        "self.cluster.gpusPerNode > 0 || !has(self.trainer.precision) || self.trainer.precision != 'bf16'",
        "be fp32 for a CPU job (cluster.gpusPerNode 0)",
        "Remove trainer.precision, or set cluster.gpusPerNode.",
    ),
    *_elastic(),
)
