"""What a job takes of a GPU's or a machine's memory, worked out before anything loads: line by line, with sources.

Everything is one rank's share, in bytes. The sizes of the base model come from its files (`model_sizes.py`). What no
file says is counted by the formulas below, or is an allowance with a name. Nothing here imports torch.

Activations follow V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models"
(arXiv:2205.05198), section 4, without the scores that flash attention does not keep, with SwiGLU, and with what LoRA on
a frozen base changes: a frozen linear layer keeps nothing, and its adapter keeps the layer's input. With h the hidden
size, q and k the widths of queries and keys, and f that of the MLP, a token of a layer keeps, in the model's precision,

    fused layers (`backends/megatron/fused_layer.py`)  2h + 2q + 2k + 2f
        hidden states before attention and MLP; q, k, v and attention's output; gate and up
    Megatron's own (tensor parallel, adapter dropout)  4h + 3q + 3k + 5f
        also the norms' outputs, q and k before rotation, SwiGLU's product, and fc1's output before and after its
        adapter's share

`trainer.recompute: selective` computes gate and up, or Megatron's MLP, again; `full` a whole layer (h stays). Either
brings one layer back at a time. Sequence parallelism splits all of it over the ranks.

Measured on an H200, 7B shape, fused, 16,384 tokens per micro-batch, without vLLM: 64.6 GB.

On CPU, attention works on padded copies (`backends/kernels/attention.py`): of the queries and of its output, each up to
twice as long, and two of the keys and values, in which each completion has its prompt's too. With a group of G, a token
keeps up to 4q + 4k (1 + G) more.

What the manifest leaves open on CPU follows from two budgets. They are fixed, so that a job does the same on machines
of any size, byte for byte, and after a restart. Only where they do not fit are both halved, until they do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from lorarl_api.v1alpha1 import LoRARLJobSpec, served_rank
from lorarl_trainer.devices.base import Gpu, Host
from lorarl_trainer.planning.execution import (
    MOST_MICRO_BATCH_TOKENS,
    ExecutionPlan,
    Recompute,
    decide,
    kv_bytes_per_token,
    kv_cache_bytes,
)
from lorarl_trainer.planning.model_sizes import LinearSize, ModelSizes
from lorarl_trainer.planning.precision import Precision

type Phase = Literal["always", "generation", "training"]

LOGITS_BYTES = 4 + 2 + 4
"""Per logit of a chunk: itself in fp32, a copy in bf16 and a temporary (`backends/kernels/logprobs.py`)."""
CONTEXT_BYTES, GRAPHS_BYTES = 1_500_000_000, 1_500_000_000
"""Allowances: what CUDA, cuBLAS and NCCL take in a process, and vLLM's CUDA graphs."""
HOST_BYTES = 1_000_000_000
"""Allowance on CPU: what torch, Megatron and vLLM keep beside their tensors, and what malloc does not give back."""
HOST_ACTIVATIONS, HOST_KV_CACHE = 2 << 30, 4 << 30
"""Budgets on CPU. More tokens at a time are not faster there."""
_HOST_BUDGET_SHARES = (1, 2, 4, 8, 16)
LEAST_MICRO_BATCH_TOKENS = 128
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


@dataclass(frozen=True)
class MemoryPlan:
    """One rank's memory.

    Attributes:
        adapted: the linear layers that have an adapter.
        rank: the adapter's.
        execution: the decisions that the memory follows from. Its KV cache holds all sequences at their longest, or as
            many as there is room for.
        gpu: what there is: a GPU, or on CPU one worker's share of the machine.
        lines: what is taken, the KV cache included.
        kv_cache_least: the KV cache that one sequence needs at its longest.
    """

    model: ModelSizes
    adapted: tuple[LinearSize, ...]
    rank: int
    execution: ExecutionPlan
    gpu: Gpu | Host
    lines: tuple[Line, ...]
    kv_cache_least: int

    def peak(self, phase: Literal["generation", "training"]) -> int:
        """Bytes that are taken in a phase."""
        return sum(line.bytes for line in self.lines if line.phase in ("always", phase))

    @property
    def fits_at_once(self) -> bool:
        """Whether both phases fit into what is free at the same time."""
        return sum(line.bytes for line in self.lines) <= self.gpu.free

    @property
    def fits(self) -> bool:
        """Whether both phases fit into what is free, and the engine can hold at least one sequence."""
        return (
            max(self.peak("generation"), self.peak("training")) <= self.gpu.free
            and self.execution.kv_cache_bytes >= self.kv_cache_least
        )

    def table(self) -> str:
        """Return the lines as a table for people."""
        rows = [
            ("", "GB", "when", "from"),
            *((line.what, gigabytes(line.bytes), line.phase, line.source) for line in self.lines),
        ]
        rows += [
            ("generating, in all", gigabytes(self.peak("generation")), "", ""),
            ("training, in all", gigabytes(self.peak("training")), "", ""),
        ]
        where, source = ("on the GPU", "its driver") if isinstance(self.gpu, Gpu) else ("for a worker", "the system")
        rows.append((f"free {where}", gigabytes(self.gpu.free), "", f"{source}; {gigabytes(self.gpu.total)} in all"))
        what, gb, when = (max(len(row[column]) for row in rows) for column in range(3))
        return "\n".join(f"{row[0]:<{what}}  {row[1]:>{gb}}  {row[2]:<{when}}  {row[3]}".rstrip() for row in rows)

    def for_execution(self, execution: ExecutionPlan) -> MemoryPlan:
        """Return the plan of the same model and adapter under other decisions."""
        return make_plan(self.model, self.adapted, self.rank, execution, self.gpu)


def plan_memory(spec: LoRARLJobSpec, model: ModelSizes, gpu: Gpu | Host, *, shared_base: bool = True) -> MemoryPlan:
    """Plan a job's memory for each of its workers.

    Where `rollout.offload` is absent, the KV cache is given up if not everything fits otherwise: `execution.offload`
    says so.

    Args:
        spec: the job.
        model: sizes of its base model.
        gpu: a worker's GPU, or on CPU the machine, which its workers share.
        shared_base: False plans two bases even where trainer and engine could share one.
    """
    adapted, rank = model.adapted(spec.adapter), spec.adapter.rank
    if isinstance(gpu, Host):
        share = Host(gpu.total // spec.workers_per_node, gpu.free // spec.workers_per_node)
        plans = (make_plan(model, adapted, rank, one, share) for one in _on_host(spec, model))
        found = next(plans)
        while not found.fits and (smaller := next(plans, None)):
            found = smaller
        return found
    execution = decide(spec, model, gpu)
    execution = replace(execution, shared_base=execution.shared_base and shared_base)
    found = make_plan(model, adapted, rank, execution, gpu)
    if spec.rollout.offload is None and not found.fits:
        return found.for_execution(replace(execution, offload=frozenset({"kv_cache"})))
    return found


def _on_host(spec: LoRARLJobSpec, model: ModelSizes) -> Iterator[ExecutionPlan]:
    """Yield the decisions on CPU under ever smaller budgets. The manifest's own micro-batch stays."""
    execution = decide(spec, model, None)
    per_token, _ = _activations(model, execution)
    for share in _HOST_BUDGET_SHARES:
        tokens = 1 << (HOST_ACTIVATIONS // share // per_token).bit_length() - 1
        tokens = min(max(tokens, LEAST_MICRO_BATCH_TOKENS), MOST_MICRO_BATCH_TOKENS)
        yield replace(
            execution,
            micro_batch_tokens=spec.trainer.tokens_per_micro_batch or tokens,
            kv_cache_most=HOST_KV_CACHE // share,
        )


def make_plan(
    model: ModelSizes, adapted: tuple[LinearSize, ...], rank: int, execution: ExecutionPlan, gpu: Gpu | Host
) -> MemoryPlan:
    """Plan what the layers `adapted` with adapters of this rank take."""
    on_gpu = isinstance(gpu, Gpu)
    context = ("CUDA, cuBLAS, NCCL", CONTEXT_BYTES) if on_gpu else ("Python, torch, malloc", HOST_BYTES)
    lines = [*_trainer(model, adapted, rank, execution), Line(*context, "always", "allowance")]
    if not execution.rollouts:
        return MemoryPlan(model, adapted, rank, execution, gpu, tuple(lines), 0)
    engine = list((_engine if on_gpu else _host_engine)(model, adapted, rank, execution))
    wanted = kv_cache_bytes(model, execution)
    own = sum(line.bytes for line in engine)
    elsewhere = sum(line.bytes for line in lines if line.phase != "training")
    room = execution.kv_cache_most
    if on_gpu:
        room = min(int(execution.engine_fraction * gpu.total) - own, gpu.free - own - elsewhere)
    given = max(0, min(wanted, room))
    per_token = kv_bytes_per_token(model, execution)
    source = f"{execution.sequences} sequences of {execution.longest} tokens, {per_token:,} bytes a token"
    if given < wanted:
        source += f"; all at their longest: {gigabytes(wanted)}"
    cache = Line("KV cache", given, "generation" if "kv_cache" in execution.offload else "always", source)
    execution = replace(execution, kv_cache_bytes=given)
    least = kv_cache_bytes(model, execution, sequences=1)
    return MemoryPlan(model, adapted, rank, execution, gpu, (*lines, *engine, cache), least)


def activation_bytes(model: ModelSizes, precision: Precision, recompute: Recompute, fused: bool) -> tuple[int, int]:
    """Return the bytes that a token keeps in all layers until the backward pass, and in one layer while that runs.

    The module's text has the formulas.
    """
    h, q, k, f = model.hidden, model.width("q_proj"), model.width("k_proj"), model.width("up_proj")
    whole = 2 * h + 2 * q + 2 * k + 2 * f if fused else 4 * h + 3 * q + 3 * k + 5 * f
    selective = 2 * h + 2 * q + 2 * k if fused else 3 * h + 3 * q + 3 * k
    kept = {"none": whole, "selective": selective, "full": h}[recompute]
    # A layer's gradients are as large as its activations. With recomputation, the activations come back too.
    at_work = whole if recompute == "none" else 2 * whole
    return kept * model.layers * precision.bytes, at_work * precision.bytes


def _activations(model: ModelSizes, execution: ExecutionPlan) -> tuple[int, int]:
    """Return one rank's `activation_bytes`, with what attention on a CPU adds."""
    kept, at_work = activation_bytes(model, execution.precision, execution.recompute, execution.fused_layers)
    if execution.attention_copies:
        copies = 4 * model.width("q_proj") + 4 * model.width("k_proj") * execution.attention_copies
        at_work += copies * execution.precision.bytes
        kept += 0 if execution.recompute == "full" else copies * execution.precision.bytes * model.layers
    return kept // execution.trainer_ranks, at_work // execution.trainer_ranks


def _trainer(model: ModelSizes, adapted: tuple[LinearSize, ...], rank: int, execution: ExecutionPlan) -> Iterator[Line]:
    ranks, precision = execution.trainer_ranks, execution.precision
    share = f", a {ranks}th of it" if ranks > 1 else ""
    base = model.parameters(ranks)
    source = f"its files: {base:,} parameters in {precision.name}{share}"
    yield Line("base model", base * precision.bytes, "always", source)
    trainable = sum(rank * (linear.inputs + linear.outputs) for linear in adapted) // ranks
    source = f"{trainable:,} parameters: {precision.name}, fp32 master and gradient, Adam's moments"
    yield Line("adapter and optimizer", trainable * trainable_bytes(precision), "always", source)
    # A longer sequence stands alone, and a small step is one micro-batch.
    tokens = min(max(execution.micro_batch_tokens, execution.longest), execution.trained * execution.longest)
    kept, at_work = _activations(model, execution)
    hidden_states = 2 * model.hidden * precision.bytes // ranks
    activations = int(tokens * (kept + at_work + hidden_states) * (1 + UNUSABLE))
    source = (
        f"{tokens:,} tokens of a micro-batch x {kept:,} bytes, and one layer at work; recompute: {execution.recompute}"
    )
    yield Line("activations", activations, "training", source)
    logits = execution.logits_chunk * LOGITS_BYTES
    chunk = f"{4 * execution.logits_chunk >> 20:,} MiB in fp32, and copies"
    yield Line("logits, a chunk at a time", logits, "training", chunk)


def trainable_bytes(precision: Precision) -> int:
    """Return the bytes of a trainable parameter: itself, its fp32 master (in fp32 itself), gradient and two moments."""
    master = 0 if precision.name == "fp32" else 4
    return precision.bytes + master + 4 + 8


def _engine(model: ModelSizes, adapted: tuple[LinearSize, ...], rank: int, execution: ExecutionPlan) -> Iterator[Line]:
    ranks, width = execution.engine_ranks, execution.precision.bytes
    if execution.shared_base:
        qkv = model.qkv_parameters(ranks) * width
        yield Line("vLLM's QKV layers", qkv, "always", "all else of the base is the trainer's own tensors")
    else:
        phase: Phase = "generation" if "weights" in execution.offload else "always"
        yield Line("vLLM's base model", model.parameters(ranks) * width, phase, "its own copy")
    slots = sum(_buffer_parameters(linear, served_rank(rank), ranks) for linear in adapted)
    yield Line("vLLM's adapter", slots * width, "always", f"its buffers for rank {served_rank(rank)}")
    tokens, sequences = execution.engine_step_tokens, execution.sequences
    mlp = 3 * model.width("up_proj") // ranks + 4 * model.hidden
    source = f"{tokens:,} tokens of prompts in a layer, logits of {sequences} sequences in fp32"
    yield Line("vLLM at work", tokens * mlp * width + 4 * sequences * model.vocabulary, "generation", source)
    yield Line("vLLM's CUDA graphs", GRAPHS_BYTES, "always", "allowance")


def _host_engine(
    model: ModelSizes, adapted: tuple[LinearSize, ...], rank: int, execution: ExecutionPlan
) -> Iterator[Line]:
    """Yield what vLLM takes on CPU, but for the KV cache."""
    width = execution.precision.bytes
    if not execution.shared_base:
        yield Line("vLLM's base model", model.parameters(1) * width, "always", "its own copy")
    packed = sum(linear.inputs * linear.outputs for linear in model.linears) * width
    yield Line("vLLM's packed weights", packed, "always", "linear layers once more, laid out for oneDNN's products")
    slots = sum(_buffer_parameters(linear, served_rank(rank), 1) for linear in adapted)
    yield Line("vLLM's adapter", slots * width, "always", f"its buffers for rank {served_rank(rank)}")
    tokens, sequences = execution.engine_step_tokens, execution.sequences
    mlp = 3 * model.width("up_proj") + 4 * model.hidden
    source = f"{tokens:,} tokens of prompts in a layer, logits of {sequences} sequences in fp32 and copies"
    yield Line(
        "vLLM at work", tokens * mlp * width + 4 * _HOST_LOGITS * sequences * model.vocabulary, "generation", source
    )


def _buffer_parameters(linear: LinearSize, rank: int, ranks: int) -> int:
    """Return the elements of A and B on one rank: A is split where the layer's input is, B where its output is."""
    if linear.split_output:
        return rank * (linear.inputs + linear.outputs // ranks)
    return rank * (linear.inputs // ranks + linear.outputs)


def gigabytes(size: int) -> str:
    """Write a number of bytes in GB, for people."""
    return f"{size / 1e9:.1f}"
