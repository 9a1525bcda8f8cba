"""What a job takes of a GPU's memory, worked out before anything loads: part by part, with its source, and whether all of it fits.

Everything is one rank's share, in bytes. The sizes of the base are measured off its files (`model_sizes.py`); what no file tells is
counted by the formulas below, or an allowance with a name. Nothing here imports torch.

Activations follow V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv:2205.05198), section 4,
without the scores that flash attention does not keep, with SwiGLU, and with what LoRA on a frozen base changes: a frozen linear layer
keeps nothing, and its adapter the layer's input. With h the hidden size, q and k the widths of queries and keys, and f that of the MLP, a
token of a layer keeps, in the model's precision,

    fused layers (`megatron_lora/fused_layer.py`)     2h + 2q + 2k + 2f
        hidden states before attention and MLP; q, k, v and attention's output; gate and up
    Megatron's own (tensor parallel, adapter dropout)  4h + 3q + 3k + 5f
        also the norms' outputs, q and k before rotation, SwiGLU's product, and fc1's output before and after its adapter's share

`trainer.recompute: selective` computes gate and up, or Megatron's MLP, again; `full` a whole layer (h stays). Either brings one layer
back at a time. Sequence parallelism splits all of it over the ranks.

Measured on an H200, 7B shape, fused, 16,384 tokens a micro-batch, without vLLM: 64.6 GB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from lorarl_api.v1alpha1 import LoRARLJobSpec, served_rank
from lorarl_trainer.planning.model_sizes import VOCABULARY_MULTIPLE, LinearSize, ModelSizes

type Phase = Literal["always", "generation", "training"]
type Recompute = Literal["none", "selective", "full"]

BYTES = {"bf16": 2, "fp32": 4}
STATE_BYTES = {"bf16": 2 + 4 + 4 + 8, "fp32": 4 + 4 + 8}
"""A trainable parameter: itself, its fp32 master (in fp32 itself), its fp32 gradient, Adam's two moments."""
BLOCK_TOKENS = 16
"""vLLM's KV cache on a GPU comes in blocks of so many tokens."""
LOGITS_BYTES = 5 << 29
"""Logits exist in chunks of 1 GiB in fp32, with a copy of half the size in bf16 and a temporary (`megatron_lora/logprobs.py`)."""
ENGINE_TOKENS = 16_384
"""Tokens that vLLM takes in one forward pass at most while it reads prompts: its default on GPUs of 70 GB and more."""
CONTEXT_BYTES, GRAPHS_BYTES = 1_500_000_000, 1_500_000_000
"""Allowances: what CUDA, cuBLAS and NCCL take in a process, and vLLM's CUDA graphs."""
UNUSABLE = 0.05
"""Share of what comes and goes in a training step that stays unused between other tensors."""


@dataclass(frozen=True)
class Demand:
    """What of a manifest decides on memory.

    Attributes:
        micro_batch_tokens: the most of one forward and backward pass.
        trained: sequences of a step on one trainer rank.
        sequences: that one engine generates at a time.
        longest: tokens of a sequence at most, prompt and response.
        rollouts: whether there is an engine at all (sft has none).
        engine_fraction: share of the GPU for vLLM.
        offload: what is given up while the other phase runs.
        shared_base: trainer and vLLM use the same base tensors, which takes the same tensor parallelism.
        fused_layers: the trainer's layers compute in a few steps, which takes one rank and no adapter dropout.
    """

    precision: str
    trainer_ranks: int
    engine_ranks: int
    micro_batch_tokens: int
    trained: int
    recompute: Recompute
    sequences: int
    longest: int
    rollouts: bool
    engine_fraction: float
    offload: frozenset[str]
    shared_base: bool
    fused_layers: bool


@dataclass(frozen=True)
class Gpu:
    """A GPU's memory, as its driver tells it before the job begins."""

    total: int
    free: int


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
        parts: what is taken, the KV cache among it.
        kv_cache_bytes: for vLLM: what all sequences need at their longest, or what there is room for.
        kv_cache_least: what one sequence needs at its longest.
    """

    model: ModelSizes
    adapted: tuple[LinearSize, ...]
    rank: int
    demand: Demand
    gpu: Gpu
    lines: tuple[Line, ...]
    kv_cache_bytes: int
    kv_cache_least: int

    def peak(self, phase: Literal["generation", "training"]) -> int:
        """Bytes that are taken in a phase."""
        return sum(part.bytes for part in self.lines if part.phase in ("always", phase))

    @property
    def fits(self) -> bool:
        """Whether both phases fit into what is free, and the engine can hold at least one sequence."""
        return (
            max(self.peak("generation"), self.peak("training")) <= self.gpu.free
            and self.kv_cache_bytes >= self.kv_cache_least
        )

    def table(self) -> str:
        """The parts, for people."""
        rows = [
            ("", "GB", "when", "from"),
            *((part.what, gigabytes(part.bytes), part.phase, part.source) for part in self.lines),
        ]
        rows += [
            ("generating, in all", gigabytes(self.peak("generation")), "", ""),
            ("training, in all", gigabytes(self.peak("training")), "", ""),
        ]
        rows.append(
            ("free on the GPU", gigabytes(self.gpu.free), "", f"its driver; {gigabytes(self.gpu.total)} in all")
        )
        what, gb, when = (max(len(row[column]) for row in rows) for column in range(3))
        return "\n".join(f"{row[0]:<{what}}  {row[1]:>{gb}}  {row[2]:<{when}}  {row[3]}".rstrip() for row in rows)

    def for_demand(self, demand: Demand) -> MemoryPlan:
        """Return the plan of the same model and adapter for another demand."""
        return make_plan(self.model, self.adapted, self.rank, demand, self.gpu)


def plan(spec: LoRARLJobSpec, model: ModelSizes, gpu: Gpu, *, shared_base: bool = True) -> MemoryPlan:
    """Plan a job's memory on each of its GPUs.

    Where `rollout.offload` is absent, the KV cache is given up if all does not fit otherwise: the plan's `demand.offload` says so.

    Args:
        spec: the job.
        model: sizes of its base model.
        gpu: what there is.
        shared_base: whether trainer and engine can hold one base; they do where both are split alike and vLLM pads no vocabulary.
    """
    chosen = spec.rollout.offload
    found = _plan(spec, model, gpu, frozenset(chosen or ()), shared_base)
    if chosen is None and not found.fits:
        return _plan(spec, model, gpu, frozenset({"kv_cache"}), shared_base)
    return found


def _plan(spec: LoRARLJobSpec, model: ModelSizes, gpu: Gpu, offload: frozenset[str], shared_base: bool) -> MemoryPlan:
    ranks = spec.rollout.tensor_parallel_size
    engines = max(1, spec.world_size // ranks)
    completions = spec.rollout.prompts_per_step * spec.algorithm.effective_group_size
    demand = Demand(
        precision=spec.precision,
        trainer_ranks=spec.trainer.tensor_parallel_size,
        engine_ranks=ranks,
        micro_batch_tokens=spec.trainer.tokens_per_micro_batch,
        trained=-(-completions * spec.trainer.tensor_parallel_size // spec.world_size),
        recompute=spec.trainer.recompute,
        sequences=min(-(-completions // engines), 1024),
        longest=spec.rollout.max_prompt_tokens + spec.rollout.max_response_tokens,
        rollouts=spec.algorithm.type != "sft",
        engine_fraction=spec.rollout.gpu_memory_fraction,
        offload=offload,
        shared_base=shared_base
        and ranks == spec.trainer.tensor_parallel_size
        and model.vocabulary % VOCABULARY_MULTIPLE == 0,
        fused_layers=spec.trainer.tensor_parallel_size == 1 and spec.adapter.dropout == 0,
    )
    return make_plan(model, model.adapted(spec.adapter), spec.adapter.rank, demand, gpu)


def make_plan(model: ModelSizes, adapted: tuple[LinearSize, ...], rank: int, demand: Demand, gpu: Gpu) -> MemoryPlan:
    """Plan what the layers `adapted` with adapters of this rank take."""
    lines = [*_trainer(model, adapted, rank, demand), Line("CUDA, cuBLAS, NCCL", CONTEXT_BYTES, "always", "allowance")]
    if not demand.rollouts:
        return MemoryPlan(model, adapted, rank, demand, gpu, tuple(lines), 0, 0)
    engine = list(_engine(model, adapted, rank, demand))
    # A rank has one head at least.
    a_token = kv_bytes_a_token(
        model.layers, max(1, model.key_heads // demand.engine_ranks), model.head, demand.precision
    )
    blocks = -(-demand.longest // BLOCK_TOKENS) * BLOCK_TOKENS
    block = (
        BLOCK_TOKENS * a_token
    )  # vLLM keeps one to itself, without which the last sequence would wait for another's end
    wanted = blocks * a_token * demand.sequences + block
    own = sum(part.bytes for part in engine)
    elsewhere = sum(part.bytes for part in lines if part.phase != "training")
    room = min(int(demand.engine_fraction * gpu.total) - own, gpu.free - own - elsewhere)
    given = max(0, min(wanted, room))
    source = f"{demand.sequences} sequences of {demand.longest} tokens, {a_token:,} bytes a token"
    if given < wanted:
        source += f"; all at their longest: {gigabytes(wanted)}"
    cache = Line("KV cache", given, "generation" if "kv_cache" in demand.offload else "always", source)
    return MemoryPlan(model, adapted, rank, demand, gpu, (*lines, *engine, cache), given, blocks * a_token + block)


def activation_bytes(model: ModelSizes, precision: str, recompute: Recompute, fused: bool) -> tuple[int, int]:
    """Bytes that a token keeps in all layers until the backward pass, and in one layer while that is computed. See the module."""
    h, q, k, f = model.hidden, model.width("q_proj"), model.width("k_proj"), model.width("up_proj")
    whole = 2 * h + 2 * q + 2 * k + 2 * f if fused else 4 * h + 3 * q + 3 * k + 5 * f
    selective = 2 * h + 2 * q + 2 * k if fused else 3 * h + 3 * q + 3 * k
    kept = {"none": whole, "selective": selective, "full": h}[recompute]
    # The gradients of a layer's activations are as large as they are; with recomputation the activations come back besides.
    at_work = whole if recompute == "none" else 2 * whole
    return kept * model.layers * BYTES[precision], at_work * BYTES[precision]


def _trainer(model: ModelSizes, adapted: tuple[LinearSize, ...], rank: int, demand: Demand) -> Iterator[Line]:
    ranks, width = demand.trainer_ranks, BYTES[demand.precision]
    over = f", a {ranks}th of it" if ranks > 1 else ""
    base = model.parameters(ranks)
    phase: Phase = "always"
    yield Line("base model", base * width, phase, f"its files: {base:,} parameters in {demand.precision}{over}")
    trainable = sum(rank * (linear.inputs + linear.outputs) for linear in adapted) // ranks
    source = f"{trainable:,} parameters: {demand.precision}, fp32 master and gradient, Adam's moments"
    yield Line("adapter and optimizer", trainable * STATE_BYTES[demand.precision], "always", source)
    # A longer sequence stands alone, and a small step is one micro-batch.
    tokens = min(max(demand.micro_batch_tokens, demand.longest), demand.trained * demand.longest)
    kept, at_work = (
        size // ranks for size in activation_bytes(model, demand.precision, demand.recompute, demand.fused_layers)
    )
    activations = int(tokens * (kept + at_work + 2 * model.hidden * width // ranks) * (1 + UNUSABLE))
    source = (
        f"{tokens:,} tokens of a micro-batch x {kept:,} bytes, and one layer at work; recompute: {demand.recompute}"
    )
    yield Line("activations", activations, "training", source)
    yield Line("logits, a chunk at a time", LOGITS_BYTES, "training", "1 GiB in fp32, and copies")


def _engine(model: ModelSizes, adapted: tuple[LinearSize, ...], rank: int, demand: Demand) -> Iterator[Line]:
    ranks, width = demand.engine_ranks, BYTES[demand.precision]
    if demand.shared_base:
        yield Line(
            "vLLM's QKV layers",
            model.qkv_parameters(ranks) * width,
            "always",
            "all else of the base is the trainer's own tensors",
        )
    else:
        phase: Phase = "generation" if "weights" in demand.offload else "always"
        yield Line("vLLM's base model", model.parameters(ranks) * width, phase, "a copy of its own")
    slots = sum(_buffer_parameters(linear, served_rank(rank), ranks) for linear in adapted)
    yield Line("vLLM's adapter", slots * width, "always", f"its buffers for rank {served_rank(rank)}")
    mlp = 3 * model.width("up_proj") // ranks + 4 * model.hidden
    logits = 4 * demand.sequences * model.vocabulary
    source = f"{ENGINE_TOKENS:,} tokens of prompts in a layer, logits of {demand.sequences} sequences in fp32"
    yield Line("vLLM at work", ENGINE_TOKENS * mlp * width + logits, "generation", source)
    yield Line("vLLM's CUDA graphs", GRAPHS_BYTES, "always", "allowance")


def _buffer_parameters(linear: LinearSize, rank: int, ranks: int) -> int:
    """A where the layer's input is split, B where its output is; the other one is whole on every rank."""
    if linear.split_output:
        return rank * (linear.inputs + linear.outputs // ranks)
    return rank * (linear.inputs // ranks + linear.outputs)


def kv_bytes_a_token(layers: int, key_heads: int, head: int, precision: str) -> int:
    """Keys and values of one token in all layers, in bytes."""
    return 2 * layers * key_heads * head * BYTES[precision]


def gigabytes(size: int) -> str:
    """A number of bytes in GB, for people."""
    return f"{size / 1e9:.1f}"
