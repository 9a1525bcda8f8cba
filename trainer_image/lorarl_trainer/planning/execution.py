"""How a worker runs its job: decided here, before anything loads, and nowhere else.

The model and the engine follow the plan. What they can only see once they are built, they compare with it (`require`).
A second formula elsewhere would be a second opinion: a job that fits by one and runs out of memory by the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.models.families import BackendName
from lorarl_trainer.models.model_sizes import VOCABULARY_MULTIPLE
from lorarl_trainer.models.shape import ModelShape
from lorarl_trainer.planning.backend_choice import backend_of, require_backend
from lorarl_trainer.planning.precision import PRECISIONS, Precision
from lorarl_trainer.samples.routing import routing_type

type Recompute = Literal["none", "selective", "full"]

MOST_SEQUENCES = 1024
"""Sequences that one engine generates at a time; more wait."""
USUAL_MICRO_BATCH_TOKENS = 16_384
"""Tokens of a micro-batch where nothing speaks for another number. On CPU these are the most."""
_FUSED_KEEP = 2
"""Fused layers keep about so many times less of a token than others."""
_SHORT = 8
"""Budget keys as if responses were 1/8 of the longest."""
LOGITS_CHUNK, _CPU_LOGITS_CHUNK = 2**28, 2**24
"""Logits that exist at a time in an update: 1 GiB in float32, on CPU 64 MiB."""
_KV_BLOCK_TOKENS = 16
"""vLLM's KV cache comes in blocks of so many tokens. Prompts share whole blocks. On CPU, vLLM's own choice is 128."""
_KV_SPARE_BLOCKS = 1
"""vLLM keeps one block to itself, without which the last sequence would wait for another to end."""
_LARGE_GPU_BYTES = 70 << 30


class PlanError(RuntimeError):
    """A model or an engine differs from the plan: a defect of lorarl, not of the manifest."""


@dataclass(frozen=True)
class ExecutionPlan:
    """What planning decided for every worker of a job.

    Attributes:
        backend: which one trains.
        precision: of base model, adapter and activations.
        expert_rank: of the adapter on each expert's layers; None for a model without experts.
        trainer_ranks, engine_ranks: tensor-parallel workers of one trainer and of one engine.
        expert_ranks: workers of which each trains some of a layer's experts, with the tokens of all of them.
        context_ranks: workers, or groups of tensor-parallel ones, that share the tokens of each micro-batch.
        packed: samples share a row without padding, where the model allows it. Otherwise each has a padded row.
        fused_layers: the trainer's layers compute in a few steps.
        router_replay: the trainer sends tokens to the experts that the rollout sent them to. False: it only compares.
            None: no rollout's routing is recorded, as for models without experts.
        base_shards: ranks of trainers that share the base's layers, each working on samples for itself; 1: none do.
        recompute: what the backward pass computes again.
        micro_batch_tokens: tokens of one trainer's forward and backward pass, unless one sequence is longer.
        micro_batch_keys: keys of all its queries, see `samples.packing`, unless one sequence has more; None for any
            number.
        attention_copies: where there is no flash attention (also for windows and capped scores), how many times
            attention holds a prompt's keys at most, for itself and for each of its completions; 0 otherwise.
        logits_chunk: logits that exist at a time in an update.
        trained: sequences of a step on one trainer, which may be several workers.
        longest: tokens of the longest sequence, prompt and response.
        least_tokens: tokens of the longest that is in one micro-batch: a sequence, or a pair with its prompt once.
        critic: a critic is trained beside the policy.
        rollouts: whether there is an engine (sft and dpo need none to train).
        held_adapters: adapters that the trainer holds beside its own: a reference, a teacher.
        sequences: sequences that one engine generates at a time.
        engine_step_tokens: tokens of one forward pass of the engine.
        shared_base: trainer and engine use the same base tensors.
        unshared: why they do not although both are split alike; None otherwise.
        engine_fraction: largest share of the GPU's memory for the engine; None for all that is free.
        offload: what the engine gives up while the trainer works.
        kv_block_tokens: tokens of one block of the KV cache.
        kv_cache_most: largest size of the KV cache on CPU.
        kv_cache_bytes: size of one rank's KV cache.
        peaks: bytes that are taken while generating and while training.
        table: what was chosen and why, and what takes how much of a GPU or of a worker's main memory, for people.
    """

    backend: BackendName
    precision: Precision
    expert_rank: int | None
    trainer_ranks: int
    engine_ranks: int
    expert_ranks: int
    context_ranks: int
    packed: bool
    fused_layers: bool
    router_replay: bool | None
    base_shards: int
    recompute: Recompute
    micro_batch_tokens: int
    micro_batch_keys: int | None
    attention_copies: int
    logits_chunk: int
    trained: int
    longest: int
    least_tokens: int
    critic: bool
    rollouts: bool
    held_adapters: int
    sequences: int
    engine_step_tokens: int
    shared_base: bool
    unshared: str | None
    engine_fraction: float | None
    offload: frozenset[str]
    kv_block_tokens: int
    kv_cache_most: int = 0
    kv_cache_bytes: int = 0
    peaks: tuple[int, int] = (0, 0)
    table: str = ""

    @property
    def trainer_workers(self) -> int:
        """Workers that make an update's micro-batches together."""
        return self.trainer_ranks * self.context_ranks

    @property
    def whole_experts(self) -> bool:
        """Whether a worker that shares its experts with others holds the weights of all: its engine uses them."""
        return self.rollouts and self.shared_base

    def require(self, decision: str, found: object) -> None:
        """Check that the model or the engine is what was planned.

        Raises:
            PlanError: it is not; the message names both.
        """
        planned = getattr(self, decision)
        if planned != found:
            raise PlanError(f"{decision} is planned as {planned}, but was found to be {found}; please report this")


def decide(
    spec: LoRARLJobSpec,
    model: ModelShape,
    gpu: Gpu | None,
    ranks: tuple[int, int] | None = None,
    context_ranks: int | None = None,
) -> ExecutionPlan:
    """Return the decisions that come before the size of the KV cache.

    What the manifest leaves open is as usual here. `choice.plan_memory` looks for what is faster, or fits.

    Args:
        spec: the job.
        model: the shape of its base model.
        gpu: a worker's GPU; None on CPU.
        ranks: tensor-parallel workers of a trainer and of an engine, where the manifest leaves them open.
        context_ranks: workers that share the tokens of a micro-batch, where the manifest leaves that open.

    Raises:
        InputError: the backend cannot do what the manifest asks for.
    """
    backend = backend_of(spec, model)
    require_backend(spec, backend)
    trainer_ranks, engine_ranks = ranks or usual_ranks(spec, model)
    context_ranks = context_ranks or usual_contexts(spec)
    engines = max(1, spec.world_size // engine_ranks)
    group = spec.algorithm.effective_group_size
    completions = spec.rollout.prompts_at_once * group
    longest = spec.rollout.max_prompt_tokens + spec.rollout.max_response_tokens
    least = longest + (spec.rollout.max_response_tokens if spec.algorithm.about.learns_from == "pairs" else 0)
    sequences = min(-(-completions // engines), MOST_SEQUENCES)
    unshared = why_not_shared(model, trainer_ranks, engine_ranks)
    fused = fuses_layers(spec, model)
    tokens = spec.trainer.tokens_per_micro_batch or max(usual_tokens(fused), least)
    # Transformers' layers also have windows and capped scores, which lorarl's flash attention has not.
    flash = gpu is not None and spec.precision != "fp32" and model.attends_plainly(longest)
    return ExecutionPlan(
        backend=backend,
        precision=PRECISIONS[spec.precision],
        expert_rank=model.expert_rank(spec.adapter),
        trainer_ranks=trainer_ranks,
        engine_ranks=engine_ranks,
        expert_ranks=spec.trainer.expert_parallel_size or 1,
        context_ranks=context_ranks,
        packed=True,
        fused_layers=fused,
        router_replay=_router_replay(spec, model),
        base_shards=spec.world_size if backend == "fsdp" and not holds_whole_base(spec, engine_ranks) else 1,
        recompute=spec.trainer.recompute or "none",
        micro_batch_tokens=tokens,
        micro_batch_keys=usual_keys(spec, tokens) if flash else None,
        attention_copies=0 if flash else 1 + group,
        logits_chunk=_CPU_LOGITS_CHUNK if gpu is None else LOGITS_CHUNK,
        trained=-(-completions * trainer_ranks * context_ranks // spec.world_size),
        longest=longest,
        least_tokens=least,
        critic=spec.algorithm.about.critic,
        rollouts=spec.generates,
        held_adapters=(spec.reference != "base") + (spec.algorithm.teacher_adapter is not None),
        sequences=sequences,
        engine_step_tokens=min(sequences * longest, _engine_step_tokens(gpu, engine_ranks)),
        shared_base=unshared is None,
        unshared=unshared if trainer_ranks == engine_ranks else None,
        engine_fraction=spec.rollout.gpu_memory_fraction,
        offload=frozenset(spec.rollout.offload or ()) if gpu is not None else frozenset(),
        kv_block_tokens=_KV_BLOCK_TOKENS,
    )


def usual_ranks(spec: LoRARLJobSpec, model: ModelShape | None = None) -> tuple[int, int]:
    """Return the tensor-parallel workers of a trainer and of an engine: as in the manifest, alike, or one.

    On CPU an engine is never split, nor is one with experts, and trainers of fsdp share no layers. Without a model,
    Megatron trains.
    """
    trainer, engine = spec.trainer.tensor_parallel_size, spec.rollout.tensor_parallel_size
    if not spec.on_gpu or (model is not None and (model.experts or backend_of(spec, model) == "fsdp")):
        return trainer or 1, engine or 1
    return trainer or engine or 1, engine or trainer or 1


def usual_contexts(spec: LoRARLJobSpec) -> int:
    """Return the workers that share the tokens of a micro-batch: as in the manifest, or one."""
    return spec.trainer.context_parallel_size or 1


def holds_whole_base(spec: LoRARLJobSpec, engine_ranks: int) -> bool:
    """Return whether each worker has the whole base model anyway, because its engine does."""
    return spec.generates and engine_ranks == 1


def fuses_layers(spec: LoRARLJobSpec, model: ModelShape) -> bool:
    """Return whether the trainer's layers compute in a few steps (`backends/megatron/fused_layer.py`).

    They have no place for an adapter's dropout.
    """
    return backend_of(spec, model) == "megatron" and model.plain_layers and spec.adapter.dropout == 0


def why_not_shared(model: ModelShape, trainer_ranks: int, engine_ranks: int) -> str | None:
    """Return why trainer and engine cannot use the same base tensors (`engine/vllm/shared_base.py`); None if they can.

    Both have the same layout if they are split alike. What differs, queries, keys and values, is copied.
    """
    if trainer_ranks != engine_ranks:
        return f"the trainer's is split over {trainer_ranks}, and vLLM's over {engine_ranks}"
    if not model.served_as_it_is:
        return "vLLM does not take the tensors of a model of this family"
    if model.vocabulary % VOCABULARY_MULTIPLE:
        return f"vLLM pads the vocabulary of {model.vocabulary:,} to a multiple of {VOCABULARY_MULTIPLE}"
    return None


def usual_tokens(fused_layers: bool) -> int:
    """Return the tokens of a micro-batch where nothing speaks for another number.

    They are fewer where layers are not fused, since each keeps more. At 7B on an H200, halving them is planned to save
    54 GB with Transformers' layers, and to cost 0.7% of a step.
    """
    return USUAL_MICRO_BATCH_TOKENS if fused_layers else USUAL_MICRO_BATCH_TOKENS // _FUSED_KEEP


def usual_keys(spec: LoRARLJobSpec, tokens: int) -> int:
    """Return the keys that a micro-batch of so many tokens has at most, as long as responses are not very short.

    A completion's keys are its prompt's and its own. With G completions of r tokens for a prompt of p, P + G r tokens
    have p + G (p + r) keys: the more, the longer the prompt, and the shorter the responses.
    """
    group, prompt = spec.algorithm.effective_group_size, spec.rollout.max_prompt_tokens
    if group == 1:
        return tokens
    response = -(-spec.rollout.max_response_tokens // _SHORT)
    return tokens + tokens * group * prompt // (prompt + group * response)


def kv_bytes_per_token(model: ModelShape, plan: ExecutionPlan) -> int:
    """Return the bytes of one token's keys and values in all layers, on one of the engine's ranks.

    Every rank has at least one head.
    """
    heads = max(1, model.key_heads // plan.engine_ranks)
    return 2 * model.layers * heads * model.head * plan.precision.bytes


def _router_replay(spec: LoRARLJobSpec, model: ModelShape) -> bool | None:
    if not (model.experts and spec.generates):
        return None
    return spec.trainer.router_replay is not False


def routing_bytes_per_token(model: ModelShape, plan: ExecutionPlan) -> int:
    """Return the bytes that the engine keeps of which experts a token was sent to, in all layers."""
    if plan.router_replay is None:
        return 0
    return model.layers * model.active_experts * np.dtype(routing_type(model.experts)).itemsize


def kv_cache_bytes(model: ModelShape, plan: ExecutionPlan, sequences: int | None = None) -> int:
    """Return the bytes on one rank that hold so many sequences at their longest; by default all that run at a time."""
    sequences = plan.sequences if sequences is None else sequences
    blocks = -(-plan.longest // plan.kv_block_tokens) * sequences
    return (blocks + _KV_SPARE_BLOCKS) * plan.kv_block_tokens * kv_bytes_per_token(model, plan)


def _engine_step_tokens(gpu: Gpu | None, ranks: int) -> int:
    """Return what vLLM 0.26 itself would choose (engine/arg_utils.py, get_batch_defaults). More slows A100s down."""
    if gpu is None:
        return 4096 * ranks
    return 16_384 if gpu.total >= _LARGE_GPU_BYTES and "a100" not in gpu.name.lower() else 8192
