"""The plans that a job could run by: every value of what its manifest leaves open. On CPU, a few fixed budgets.

A field that is set has one value. Nothing here knows which plan fits, or how fast it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.models.model_sizes import ModelSizes
from lorarl_trainer.planning.activations import token_bytes
from lorarl_trainer.planning.execution import ExecutionPlan, Recompute
from lorarl_trainer.planning.usual import USUAL_MICRO_BATCH_TOKENS, decide, fuses_layers, usual_contexts, usual_keys

_MICRO_BATCH_TOKENS = (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)
_RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
_FEWER_KEYS = 4
"""If keys are short of memory, a micro-batch has so many times fewer; each time, and at least twice its tokens."""

HOST_ACTIVATIONS, HOST_KV_CACHE = 2 << 30, 4 << 30
"""Budgets on CPU. More tokens at a time are not faster there."""
_HOST_BUDGET_SHARES = (1, 2, 4, 8, 16)
LEAST_MICRO_BATCH_TOKENS = 128


def on_gpu(spec: LoRARLJobSpec, model: ModelSizes, gpu: Gpu, ranks: tuple[int, int]) -> Iterator[ExecutionPlan]:
    """Yield the plans for GPUs with so many tensor-parallel ranks of trainer and engine."""
    kinds = [spec.trainer.recompute] if spec.trainer.recompute else _RECOMPUTE
    for context_ranks in _contexts(spec, model, ranks):
        base = decide(spec, model, gpu, ranks, context_ranks)
        for tokens in _token_sizes(spec, base):
            for keys in _key_numbers(spec, base, tokens):
                for recompute in kinds:
                    trainer = replace(
                        base.trainer, micro_batch_tokens=tokens, micro_batch_keys=keys, recompute=recompute
                    )
                    yield from _phases(spec, replace(base, trainer=trainer))


def on_host(spec: LoRARLJobSpec, model: ModelSizes) -> Iterator[ExecutionPlan]:
    """Yield the plans for CPUs, under ever smaller budgets. The manifest's own micro-batch stays.

    The budgets are fixed, so that a job does the same on machines of any size, byte for byte, and after a restart. Only
    where they do not fit are both halved, until they do.
    """
    base = decide(spec, model, None)
    per_token, _ = token_bytes(model, base)
    for share in _HOST_BUDGET_SHARES:
        tokens = 1 << (HOST_ACTIVATIONS // share // per_token).bit_length() - 1
        tokens = min(max(tokens, LEAST_MICRO_BATCH_TOKENS), USUAL_MICRO_BATCH_TOKENS)
        yield replace(
            base,
            trainer=replace(base.trainer, micro_batch_tokens=spec.trainer.tokens_per_micro_batch or tokens),
            engine=replace(base.engine, kv_cache_most=HOST_KV_CACHE // share),
        )


def _contexts(spec: LoRARLJobSpec, model: ModelSizes, ranks: tuple[int, int]) -> Iterator[int]:
    """Yield numbers of workers that share the tokens of a micro-batch.

    Sharing them is for sequences that fill a micro-batch. For shorter ones, smaller micro-batches take less memory too.
    Layers that are not fused, and those of a mixture, have not been measured with it.
    """
    yield usual_contexts(spec)
    longest = spec.rollout.max_prompt_tokens + spec.rollout.max_response_tokens
    if (
        spec.trainer.context_parallel_size is None
        and fuses_layers(spec, model)
        and not model.experts
        and longest >= USUAL_MICRO_BATCH_TOKENS
    ):
        gpus = spec.cluster.gpus_per_node
        yield from (sharing for sharing in range(2, gpus // ranks[0] + 1) if gpus % (sharing * ranks[0]) == 0)


def _token_sizes(spec: LoRARLJobSpec, base: ExecutionPlan) -> Iterator[int]:
    """Yield sizes of a micro-batch, up to one that holds the whole step."""
    if spec.trainer.tokens_per_micro_batch:
        yield base.trainer.micro_batch_tokens
        return
    sizes = [*_MICRO_BATCH_TOKENS]
    if spec.rollout.max_prompt_tokens >= spec.rollout.max_response_tokens:
        sizes += _group_tokens(spec)
    for tokens in sorted({max(tokens, base.trainer.least_tokens) for tokens in sizes}):
        yield tokens
        if tokens >= base.trainer.most_samples * base.longest:
            return


def _group_tokens(spec: LoRARLJobSpec) -> Iterator[int]:
    """Yield the tokens of the largest group, of half of it, and so on. Its prompt is computed once for each part."""
    completions = spec.algorithm.effective_group_size
    while completions > 1:
        yield spec.rollout.max_prompt_tokens + completions * spec.rollout.max_response_tokens
        completions = -(-completions // 2)


def _key_numbers(spec: LoRARLJobSpec, base: ExecutionPlan, tokens: int) -> Iterator[int | None]:
    if base.trainer.micro_batch_keys is None:
        yield None
        return
    keys = usual_keys(spec, tokens)
    yield keys
    while (keys := keys // _FEWER_KEYS) >= 2 * tokens:
        yield keys


def _phases(spec: LoRARLJobSpec, plan: ExecutionPlan) -> Iterator[ExecutionPlan]:
    """Yield what the engine may give up while the trainer works."""
    yield plan
    if not plan.rollouts:
        return
    if spec.rollout.offload is None:
        yield _giving_up(plan, "kv_cache")
        if not plan.layout.shared_base:
            yield _giving_up(plan, "kv_cache", "weights")


def _giving_up(plan: ExecutionPlan, *what: str) -> ExecutionPlan:
    return replace(plan, engine=replace(plan.engine, offload=frozenset(what)))
