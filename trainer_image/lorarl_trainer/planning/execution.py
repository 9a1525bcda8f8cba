"""How a worker runs its job: decided in this room, before anything loads, and nowhere else.

The model and the engine follow the plan. What they can only see once they are built, they compare with it (`require`).
A second formula elsewhere would be a second opinion: a job that fits by one and runs out of memory by the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lorarl_trainer.kernels.formats import Format
from lorarl_trainer.models.families import BackendName
from lorarl_trainer.models.shape import ModelShape
from lorarl_trainer.planning.precision import Precision
from lorarl_trainer.samples.routing import routing_type

type Recompute = Literal["none", "selective", "full"]

WATERMARK = 0.02
"""Share of the KV cache that stays free for the requests that run when another one is admitted.

Without it, requests that have just been admitted are stopped again at once. 2% lets 500 requests grow by some 20 tokens
in the KV cache of a 7B model on an H200, and costs 2% of its room.
"""
_KV_SPARE_BLOCKS = 1
"""vLLM keeps one block to itself, without which the last sequence would wait for another to end."""


class PlanError(RuntimeError):
    """A model or an engine differs from the plan: a defect of lorarl, not of the manifest."""


@dataclass(frozen=True)
class Layout:
    """What workers share.

    Attributes:
        trainer_ranks, engine_ranks: tensor-parallel workers of one trainer and of one engine.
        expert_ranks: workers of which each trains some of a layer's experts, with the tokens of all of them.
        context_ranks: workers, or groups of tensor-parallel ones, that share the tokens of each micro-batch.
        base_shards: ranks of trainers that share the base's layers, each working on samples for itself; 1: none do.
        shared_base: trainer and engine use the same base tensors.
        unshared: why they do not although both are split alike; None otherwise.
    """

    trainer_ranks: int
    engine_ranks: int
    expert_ranks: int
    context_ranks: int
    base_shards: int
    shared_base: bool
    unshared: str | None

    @property
    def trainer_workers(self) -> int:
        """Workers that make an update's micro-batches together."""
        return self.trainer_ranks * self.context_ranks


@dataclass(frozen=True)
class TrainerPlan:
    """How a trainer makes an update.

    Attributes:
        packed: samples share a row without padding, where the model allows it. Otherwise each has a padded row.
        fused_layers: its layers compute in a few steps.
        recompute: what the backward pass computes again.
        micro_batch_tokens: tokens of its forward and backward pass, unless one sequence is longer.
        micro_batch_keys: keys of all its queries, see `samples.packing`, unless one sequence has more; None for any
            number.
        attention_copies: where there is no flash attention (also for windows and capped scores), how many times
            attention holds a prompt's keys at most, for itself and for each of its completions; 0 otherwise.
        logits_chunk: logits that exist at a time.
        trained: completions or episodes of a step on one trainer, which may be several workers.
        sequences: of an episode at most.
        least_tokens: tokens of the longest that is in one micro-batch: a sequence, or a pair with its prompt once.
        critic: a critic is trained beside the policy.
        held_adapters: adapters that it holds beside its own: a reference, a teacher.
    """

    packed: bool
    fused_layers: bool
    recompute: Recompute
    micro_batch_tokens: int
    micro_batch_keys: int | None
    attention_copies: int
    logits_chunk: int
    trained: int
    least_tokens: int
    critic: bool
    held_adapters: int
    sequences: int = 1

    @property
    def most_samples(self) -> int:
        """Samples of a step on one trainer, at most."""
        return self.trained * self.sequences

    @property
    def key_budget(self) -> int | None:
        """Keys of a micro-batch, see `micro_batch_keys`: also where more sequences share a prompt than a group has."""
        if self.micro_batch_keys is None and self.sequences > 1:
            return self.attention_copies * self.micro_batch_tokens
        return self.micro_batch_keys

    def require(self, decision: str, found: object) -> None:
        """Check that the model is what was planned.

        Raises:
            PlanError: it is not; the message names both.
        """
        planned = getattr(self, decision)
        if planned != found:
            raise PlanError(f"{decision} is planned as {planned}, but was found to be {found}; please report this")


@dataclass(frozen=True)
class EnginePlan:
    """How an engine generates.

    Attributes:
        sequences: those that it is asked for at a time.
        step_tokens: tokens of one forward pass.
        memory_fraction: its largest share of the GPU's memory; None for all that is free.
        offload: what it gives up while the trainer works.
        kv_block_tokens: tokens of one block of the KV cache.
        kv_cache_most: largest size of the KV cache on CPU.
        kv_cache_bytes: size of one rank's KV cache.
        adapters: those that it generates with at a time.
        most_at_once: sequences whose states the KV cache holds; the others wait. None: the model keeps no states.
    """

    sequences: int
    step_tokens: int
    memory_fraction: float | None
    offload: frozenset[str]
    kv_block_tokens: int
    kv_cache_most: int = 0
    kv_cache_bytes: int = 0
    adapters: int = 1
    most_at_once: int | None = None

    @property
    def at_once(self) -> int:
        """Sequences that run at a time."""
        return self.sequences if self.most_at_once is None else min(self.sequences, self.most_at_once)


@dataclass(frozen=True)
class ExecutionPlan:
    """What planning decided for every worker of a job.

    Attributes:
        backend: which one trains.
        compute: the precision of adapter and activations.
        quantization: what the weights of the base's linear layers are held in; None: in `compute`, as all others.
        expert_rank: of the adapter on each expert's layers; None for a model without experts.
        router_replay: the trainer sends tokens to the experts that the rollout sent them to. False: it only compares.
            None: no rollout's routing is recorded, as for models without experts.
        longest: tokens of the longest sequence, prompt and response.
        rollouts: whether there is an engine (sft and dpo need none to train).
        peaks: bytes that are taken while generating and while training.
        table: what was chosen and why, and what takes how much of a GPU or of a worker's main memory, for people.
    """

    backend: BackendName
    compute: Precision
    quantization: Format | None
    expert_rank: int | None
    router_replay: bool | None
    longest: int
    rollouts: bool
    layout: Layout
    trainer: TrainerPlan
    engine: EnginePlan
    peaks: tuple[int, int] = (0, 0)
    table: str = ""

    @property
    def whole_experts(self) -> bool:
        """Whether a worker that shares its experts with others holds the weights of all: its engine uses them."""
        return self.rollouts and self.layout.shared_base


def kv_bytes_per_token(model: ModelShape, plan: ExecutionPlan) -> int:
    """Return the bytes of one token's keys and values in all layers that have them, on one of the engine's ranks.

    Every rank has at least one head.
    """
    if model.key_widths:
        return 2 * sum(model.key_widths) * plan.compute.bytes
    heads = max(1, model.key_heads // plan.layout.engine_ranks)
    return 2 * model.attention_layers * heads * model.head * plan.compute.bytes


def routing_bytes_per_token(model: ModelShape, plan: ExecutionPlan) -> int:
    """Return the bytes that the engine keeps of which experts a token was sent to, in all layers."""
    if plan.router_replay is None:
        return 0
    return model.layers * model.active_experts * np.dtype(routing_type(model.experts)).itemsize


def kv_cache_bytes(model: ModelShape, plan: ExecutionPlan, sequences: int | None = None) -> int:
    """Return the bytes on one rank that hold so many sequences at their longest; by default all that run at a time."""
    sequences = plan.engine.sequences if sequences is None else sequences
    tokens = _kv_block_tokens(model, plan)
    blocks = (-(-plan.longest // tokens) + _state_blocks(model)) * sequences
    if model.states:  # a sequence has most of its blocks from the start, so that the last ones would wait for others
        blocks = math.ceil(blocks / (1 - WATERMARK))
    return (blocks + _KV_SPARE_BLOCKS) * tokens * kv_bytes_per_token(model, plan)


def sequences_held(
    model: ModelShape, plan: ExecutionPlan, prompt_tokens: float, response_tokens: float, group: int = 1
) -> float:
    """Return how many sequences of so many tokens the KV cache holds at a time.

    A group shares its prompt's keys and values, except where layers keep states: there vLLM caches no prefixes, and the
    states take further blocks.
    """
    of_token = kv_bytes_per_token(model, plan)
    if not model.states:
        return plan.engine.kv_cache_bytes / of_token / (prompt_tokens / group + response_tokens)
    tokens = _kv_block_tokens(model, plan)
    blocks = plan.engine.kv_cache_bytes / (tokens * of_token) - _KV_SPARE_BLOCKS
    return max(0.0, blocks) / (math.ceil((prompt_tokens + response_tokens) / tokens) + _state_blocks(model))


def _state_blocks(model: ModelShape) -> int:
    """Return the blocks of a sequence's states. vLLM keeps those of as many layers in a block as have attention."""
    return -(-len(model.states) // model.attention_layers)


def _kv_block_tokens(model: ModelShape, plan: ExecutionPlan) -> int:
    """Return the tokens of a block. vLLM makes blocks so large that one holds a layer's state of a sequence."""
    least, ranks = plan.engine.kv_block_tokens, plan.layout.engine_ranks
    states = [state.inputs * plan.compute.bytes + 4 * state.recurrent for state in model.states]
    of_token = kv_bytes_per_token(model, plan) // model.attention_layers
    return max(1, -(-max(states, default=0) // (ranks * of_token * least))) * least


def capture_sizes(sequences: int) -> list[int]:
    """Return the batch sizes to record CUDA graphs of decoding for, up to all sequences (vLLM's choice ends at 512).

    A batch is padded to the next size. Up to 128 that costs nothing, because reading the weights takes longer than
    multiplying with them. Above 128 the gaps are small. A graph takes memory, and some 50 ms of the start.
    """
    powers = [2**power for power in range(8)]
    return sorted({size for size in (*powers, *range(160, sequences, 32)) if size < sequences} | {sequences})
