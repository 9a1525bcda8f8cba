"""What trainer and engine take of one rank's memory, line by line, with sources. All but the KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from lorarl_trainer.kernels.formats import Format
from lorarl_trainer.models.model_sizes import ModelSizes
from lorarl_trainer.planning.activations import key_bytes, low_rank_bytes, shared_key_bytes, token_bytes
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.planning.precision import PRECISIONS, Precision

type Phase = Literal["always", "generation", "training"]

LOGITS_BYTES = 4 + 2 + 4
"""Per logit of a chunk: itself in fp32, a copy in bf16 and a temporary (`kernels/logprobs.py`)."""
GRAPHS_BYTES = 1_500_000_000
"""Allowance: what vLLM's CUDA graphs take."""
_HOST_LOGITS = 5
"""vLLM's logits, probabilities and random numbers on CPU."""
UNUSABLE = 0.05
"""Share of what comes and goes in a training step that stays unused between other tensors."""


@dataclass(frozen=True)
class Line:
    """A line of the table: what takes memory, how much, when, and where the figure is from."""

    what: str
    bytes: int
    phase: Phase
    source: str


def trainer_lines(model: ModelSizes, adapter: AdapterSize, execution: ExecutionPlan) -> Iterator[Line]:
    """Yield what the trainer takes."""
    ranks, precision = execution.layout.trainer_ranks, execution.compute
    of = execution.quantization
    yield from _base(model, execution) if of is None else _quantized_base(model, execution, of)
    trainable = adapter.trainable(ranks, execution.layout.expert_ranks)
    source = f"{trainable:,} parameters: {precision.name}, fp32 master and gradient, Adam's moments"
    yield Line("adapter and optimizer", trainable * trainable_bytes(precision), "always", source)
    if execution.trainer.critic:
        critic = trainable * trainable_bytes(precision) + model.hidden * trainable_bytes(PRECISIONS["fp32"])
        yield Line("critic and its optimizer", critic, "always", "a second adapter, and a head on the hidden states")
    if held := execution.trainer.held_adapters:
        source = f"{held} x {trainable:,} parameters: a reference, or a teacher"
        yield Line("adapters that are held", held * trainable * precision.bytes, "always", source)
    yield _activations(model, adapter, execution)
    yield from _adapters_that_stay(adapter, execution)
    logits = execution.trainer.logits_chunk * LOGITS_BYTES
    chunk = f"{4 * execution.trainer.logits_chunk >> 20:,} MiB in fp32, and copies"
    yield Line("logits, a chunk at a time", logits, "training", chunk)


def _base(model: ModelSizes, execution: ExecutionPlan) -> Iterator[Line]:
    ranks, stored = execution.layout.trainer_ranks, execution.compute
    share = f", 1/{ranks} of it" if ranks > 1 else ""
    holders = 1 if execution.whole_experts else execution.layout.expert_ranks
    base = model.parameters(ranks, holders)
    if holders > 1 or (ranks > 1 and model.experts):
        share += f", 1/{holders} of its experts"
    elif execution.layout.expert_ranks > 1:
        share += ", with all experts, which vLLM uses too"
    if (shards := execution.layout.base_shards) > 1:
        # While a layer is at work, the next one is gathered too.
        base += model.of_products // shards + 2 * model.of_products // model.layers - model.of_products
        share = f", layers over {shards} ranks, and two of them whole"
    source = f"its files: {base:,} parameters in {stored.name}{share}"
    yield Line("base model", base * stored.bytes, "always", source)


def _quantized_base(model: ModelSizes, execution: ExecutionPlan, of: Format) -> Iterator[Line]:
    """Yield what a format holds, and what is made of it while a layer is at work. Each rank has the whole base."""
    codes, width = model.of_products, execution.compute.bytes
    held, rest = of.bytes_of(model.linear_shapes), model.parameters(1) - codes
    source = f"its files: {codes:,} parameters in {of.name}, with their scales, {rest:,} in {execution.compute.name}"
    yield Line("base model", held + rest * width, "always", source)
    largest = max(linear.inputs * linear.outputs for linear in model.linears)
    largest = max(largest, model.hidden * model.width("gate_proj", "up_proj"))
    copies = 1 + execution.rollouts  # the engine's CUDA graphs keep their own
    source = f"the largest layer's in {execution.compute.name}, in the trainer{' and in vLLM' * execution.rollouts}"
    yield Line("a layer's weights", copies * largest * width, "always", source)


def _activations(model: ModelSizes, adapter: AdapterSize, execution: ExecutionPlan) -> Line:
    tokens = micro_batch_tokens(execution)
    parts = token_bytes(model, execution), low_rank_bytes(model, adapter, execution)
    kept, at_work = (sum(both) for both in zip(*parts, strict=True))
    hidden_states = 2 * model.hidden * execution.compute.bytes // execution.layout.trainer_workers
    total = tokens * (kept + at_work + hidden_states + shared_key_bytes(model, execution))
    source = f"{tokens:,} tokens of a micro-batch x {kept:,} bytes, and one layer at work"
    if execution.layout.context_ranks > 1:
        source = f"1/{execution.layout.context_ranks} of the tokens, the keys of all: {source}"
    if keys := micro_batch_keys(execution):
        total += keys * sum(key_bytes(model, execution))
        source += f" with {keys:,} keys"
    total += _adapters_at_work(model, adapter, execution)
    return Line(
        "activations", int(total * (1 + UNUSABLE)), "training", f"{source}; recompute: {execution.trainer.recompute}"
    )


def _adapters_that_stay(adapter: AdapterSize, execution: ExecutionPlan) -> Iterator[Line]:
    """Yield what fused layers make of adapters' parameters and keep until the backward pass."""
    if not execution.trainer.fused_layers or execution.trainer.recompute == "full":
        return
    width, ranks = execution.compute.bytes, execution.layout.trainer_ranks
    if ranks > 1:
        yield Line("adapters, gathered", adapter.gathered() * width, "training", f"what {ranks} ranks have shares of")
    # `selective` computes the whole mixture again.
    if execution.trainer.recompute == "none" and (joined := adapter.joined_experts(execution.layout.expert_ranks)):
        yield Line("experts' adapters, joined", joined * width, "training", "those of a layer as one, in all layers")


def _adapters_at_work(model: ModelSizes, adapter: AdapterSize, execution: ExecutionPlan) -> int:
    """Return the bytes of what one fused layer makes of adapters' parameters for its products, and of its gradients."""
    if not execution.trainer.fused_layers:
        return 0
    joined = 2 * (adapter.joined + adapter.joined_experts(execution.layout.expert_ranks))
    gathered = adapter.gathered() if execution.layout.trainer_ranks > 1 else 0
    return (joined + gathered) // model.layers * execution.compute.bytes


def micro_batch_tokens(execution: ExecutionPlan) -> int:
    """Return the most tokens of a micro-batch. What is longer stands alone, and a small step is one micro-batch."""
    return min(
        max(execution.trainer.micro_batch_tokens, execution.trainer.least_tokens),
        execution.trainer.most_samples * execution.longest,
    )


def micro_batch_keys(execution: ExecutionPlan) -> int:
    """Return the most keys of a micro-batch; 0 where `token_bytes` has them already."""
    if execution.trainer.micro_batch_keys is None:
        return 0
    # With two samples, a prompt is a separate segment.
    keys = min(
        max(execution.trainer.micro_batch_keys, execution.trainer.least_tokens),
        2 * execution.trainer.most_samples * execution.longest,
    )
    # A rank that shares the context may have two parts of a sequence, and the keys of both.
    return keys + (execution.longest if execution.layout.context_ranks > 1 else 0)


def trainable_bytes(precision: Precision) -> int:
    """Return the bytes of a trainable parameter: itself, its fp32 master (in fp32 itself), gradient and two moments."""
    master = 0 if precision.name == "fp32" else 4
    return precision.bytes + master + 4 + 8


def engine_lines(model: ModelSizes, adapter: AdapterSize, execution: ExecutionPlan) -> Iterator[Line]:
    """Yield what vLLM takes on a GPU, but for the KV cache."""
    ranks, width = execution.layout.engine_ranks, execution.compute.bytes
    if execution.layout.shared_base and execution.backend == "fsdp":
        yield Line("vLLM's base model", 0, "always", "the trainer's own tensors")
    elif execution.layout.shared_base:
        qkv = model.qkv_parameters(ranks) * width
        yield Line("vLLM's QKV layers", qkv, "always", "all else of the base is the trainer's own tensors")
    else:
        phase: Phase = "generation" if "weights" in execution.engine.offload else "always"
        yield Line("vLLM's base model", model.parameters(ranks) * width, phase, "its own copy")
    yield _served_adapter(adapter, execution, on_gpu=True)
    tokens, sequences = execution.engine.step_tokens, execution.engine.sequences
    mlp = 3 * model.width("up_proj") // ranks + 4 * model.hidden
    active, _ = model.experts_at_work
    if active:
        shared = model.frozen_experts.shared if model.frozen_experts else 0
        mlp = active * (5 * model.inner + 4 * model.hidden) + 3 * shared
    source = f"{tokens:,} tokens of prompts in a layer, logits of {sequences} sequences in fp32"
    yield Line("vLLM activations", tokens * mlp * width + 4 * sequences * model.vocabulary, "generation", source)
    yield Line("vLLM's CUDA graphs", GRAPHS_BYTES, "always", "allowance")


def host_engine_lines(model: ModelSizes, adapter: AdapterSize, execution: ExecutionPlan) -> Iterator[Line]:
    """Yield what vLLM takes on CPU, but for the KV cache."""
    width = execution.compute.bytes
    if not execution.layout.shared_base:
        yield Line("vLLM's base model", model.parameters(1) * width, "always", "its own copy")
    yield _served_adapter(adapter, execution)
    tokens, sequences = execution.engine.step_tokens, execution.engine.sequences
    mlp = 3 * model.width("up_proj") + 4 * model.hidden
    source = f"{tokens:,} tokens of prompts in a layer, logits of {sequences} sequences in fp32 and copies"
    yield Line(
        "vLLM activations", tokens * mlp * width + 4 * _HOST_LOGITS * sequences * model.vocabulary, "generation", source
    )


def _served_adapter(adapter: AdapterSize, execution: ExecutionPlan, *, on_gpu: bool = False) -> Line:
    width, source = execution.compute.bytes, f"its buffers for rank {adapter.served_rank}"
    if (several := execution.engine.adapters) > 1:
        source = f"its buffers for {several} of rank {adapter.served_rank} at a time"
        return Line("vLLM's adapters", adapter.served_beside(several) * width, "always", source)
    elements = adapter.served(execution.layout.engine_ranks if on_gpu else 1, on_gpu=on_gpu)
    return Line("vLLM's adapter", elements * width, "always", source)
