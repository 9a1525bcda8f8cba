"""The plan of a job where nothing speaks for another one: what its manifest says, and what is usual for the rest."""

from __future__ import annotations

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.kernels.formats import format_of
from lorarl_trainer.models.model_sizes import VOCABULARY_MULTIPLE
from lorarl_trainer.models.shape import ModelShape
from lorarl_trainer.planning.backend_choice import backend_of, require_backend
from lorarl_trainer.planning.execution import EnginePlan, ExecutionPlan, Layout, TrainerPlan
from lorarl_trainer.planning.precision import PRECISIONS
from lorarl_trainer.planning.quantization import require_quantizable

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
_LARGE_GPU_BYTES = 70 << 30


def decide(
    spec: LoRARLJobSpec,
    model: ModelShape,
    gpu: Gpu | None,
    ranks: tuple[int, int] | None = None,
    context_ranks: int | None = None,
) -> ExecutionPlan:
    """Return the decisions that come before the size of the KV cache.

    What the manifest leaves open is as usual here. `choice.choose_plan` looks for what is faster, or fits.

    Args:
        spec: the job.
        model: the shape of its base model.
        gpu: a worker's GPU; None on CPU.
        ranks: tensor-parallel workers of a trainer and of an engine, where the manifest leaves them open.
        context_ranks: workers that share the tokens of a micro-batch, where the manifest leaves that open.

    Raises:
        InputError: the backend cannot do what the manifest asks for.
    """
    backend, precision = backend_of(spec, model), PRECISIONS[spec.precision]
    require_backend(spec, model)
    if spec.model.quantization != "none":
        require_quantizable(spec, model)
    layout = _layout(spec, model, ranks or usual_ranks(spec, model), context_ranks or usual_contexts(spec))
    return ExecutionPlan(
        backend=backend,
        compute=precision,
        quantization=format_of(spec.model.quantization),
        expert_rank=model.expert_rank(spec.adapter),
        router_replay=_router_replay(spec, model),
        longest=_longest(spec),
        rollouts=spec.generates,
        layout=layout,
        trainer=_trainer(spec, model, gpu, layout),
        engine=_engine(spec, gpu, layout),
    )


def _layout(spec: LoRARLJobSpec, model: ModelShape, ranks: tuple[int, int], context_ranks: int) -> Layout:
    trainer_ranks, engine_ranks = ranks
    sharded = backend_of(spec, model) == "fsdp" and not holds_whole_base(spec, engine_ranks)
    unshared = why_not_shared(model, trainer_ranks, engine_ranks)
    return Layout(
        trainer_ranks=trainer_ranks,
        engine_ranks=engine_ranks,
        expert_ranks=spec.trainer.expert_parallel_size or 1,
        context_ranks=context_ranks,
        base_shards=spec.world_size if sharded else 1,
        shared_base=unshared is None,
        unshared=unshared if trainer_ranks == engine_ranks else None,
    )


def _trainer(spec: LoRARLJobSpec, model: ModelShape, gpu: Gpu | None, layout: Layout) -> TrainerPlan:
    longest, fused = _longest(spec), fuses_layers(spec, model)
    least = longest + (spec.rollout.max_response_tokens if spec.algorithm.about.learns_from == "pairs" else 0)
    tokens = spec.trainer.tokens_per_micro_batch or max(usual_tokens(fused), least)
    # Transformers' layers also have windows and capped scores, which lorarl's flash attention has not.
    flash = gpu is not None and spec.precision != "fp32" and model.attends_plainly(longest)
    return TrainerPlan(
        packed=True,
        fused_layers=fused,
        recompute=spec.trainer.recompute or "none",
        micro_batch_tokens=tokens,
        micro_batch_keys=usual_keys(spec, tokens) if flash else None,
        attention_copies=0 if flash else 1 + spec.algorithm.effective_group_size,
        logits_chunk=_CPU_LOGITS_CHUNK if gpu is None else LOGITS_CHUNK,
        trained=-(-_completions(spec) * layout.trainer_workers // spec.world_size),
        least_tokens=least,
        critic=spec.algorithm.about.critic,
        held_adapters=(spec.reference != "base") + (spec.algorithm.teacher_adapter is not None),
        sequences=spec.environment.most_sequences if spec.environment else 1,
    )


def _engine(spec: LoRARLJobSpec, gpu: Gpu | None, layout: Layout) -> EnginePlan:
    engines = max(1, spec.world_size // layout.engine_ranks)
    sequences = min(-(-_completions(spec) // engines), MOST_SEQUENCES)
    return EnginePlan(
        sequences=sequences,
        step_tokens=min(sequences * _longest(spec), _engine_step_tokens(gpu, layout.engine_ranks)),
        memory_fraction=spec.rollout.gpu_memory_fraction,
        offload=frozenset(spec.rollout.offload or ()) if gpu is not None else frozenset(),
        kv_block_tokens=_KV_BLOCK_TOKENS,
    )


def _longest(spec: LoRARLJobSpec) -> int:
    """Return the tokens of the longest sequence, prompt and response."""
    return spec.rollout.max_prompt_tokens + spec.rollout.max_response_tokens


def _completions(spec: LoRARLJobSpec) -> int:
    """Return how many completions the engines are asked for at once."""
    return spec.rollout.prompts_at_once * spec.algorithm.effective_group_size


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
    """Return whether each worker has the whole base model: its engine does, or it is quantized."""
    return (spec.generates and engine_ranks == 1) or spec.model.quantization != "none"


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


def _router_replay(spec: LoRARLJobSpec, model: ModelShape) -> bool | None:
    if not (model.experts and spec.generates):
        return None
    return spec.trainer.router_replay is not False


def _engine_step_tokens(gpu: Gpu | None, ranks: int) -> int:
    """Return what vLLM 0.26 itself would choose (engine/arg_utils.py, get_batch_defaults). More slows A100s down."""
    if gpu is None:
        return 4096 * ranks
    return 16_384 if gpu.total >= _LARGE_GPU_BYTES and "a100" not in gpu.name.lower() else 8192
