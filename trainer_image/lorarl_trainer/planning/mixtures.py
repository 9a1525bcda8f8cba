"""What a job may ask of a mixture of experts; which mixtures are taken is in `models/mixtures.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.experts import expert_layers, of_all_experts
from lorarl_trainer.models.model_sizes import ModelSizes


def require_mixture_job(spec: LoRARLJobSpec, model: ModelSizes) -> None:
    """Refuse what a job asks of a mixture of experts and was not compared, or of experts that are not there.

    Raises:
        InputError: naming the field and the fix.
    """
    rank = spec.adapter.expert_rank
    if not model.experts:
        why = "the model's experts stay as they are" if model.frozen_experts else "the model has no experts"
        if rank is not None:
            raise _refused("adapter.expertRank", rank, f"no value: {why}", "Remove it.", "")
        if spec.adapter.shares_outer:
            expected = f"perExpert: {why}"
            raise _refused("adapter.experts", spec.adapter.experts, expected, "Remove it.", "")
        if (replay := spec.trainer.router_replay) is not None:
            expected = f"no value: {why}"
            raise _refused("trainer.routerReplay", str(replay).lower(), expected, "Remove it.", "")
        if (ranks := spec.trainer.expert_parallel_size or 1) > 1:
            raise _refused("trainer.expertParallelSize", ranks, f"1: {why}", "Remove it.", "")
        return
    _require_equal_shares(model.experts, spec.trainer.expert_parallel_size or 1)
    if model.whole_norms and (ranks := spec.trainer.tensor_parallel_size or 1) > 1:
        expected = "1: its norms are of all heads together"
        raise _refused("trainer.tensorParallelSize", ranks, expected, "Remove it.", " for a model of this family")
    for refused, field, got, expected, hint in _not_compared(spec):
        if refused:
            raise _refused(field, got, expected, hint)
    if spec.adapter.shares_outer:
        _require_all_experts(spec, model)


def _not_compared(spec: LoRARLJobSpec) -> Iterator[tuple[bool, str, object, str, str]]:
    """Yield whether a job asks for something, the field, its value, what is expected, and the fix."""
    single = spec.on_gpu and spec.precision == "fp32"
    hint = "Set spec.trainer.precision: bf16."
    yield single, "trainer.precision", "fp32", "bf16: GPUs have grouped products for it alone", hint
    ranks, whole = spec.rollout.tensor_parallel_size, "1: each engine computes whole experts, and all of them"
    yield (ranks or 1) > 1, "rollout.tensorParallelSize", ranks, whole, "Remove it."
    hint = "Remove it, or set spec.trainer.backend: megatron."
    yield spec.trainer.backend == "fsdp", "trainer.backend", "fsdp", "megatron, which trains experts", hint
    # PEFT refuses both where several experts share an adapter's tensors.
    dropout = spec.adapter.dropout
    yield dropout > 0, "adapter.dropout", f"{dropout:g}", "0: PEFT has none on experts", "Remove it."
    yield spec.adapter.dora, "adapter.dora", "true", "false: PEFT has no DoRA on experts", "Remove it."


def _require_equal_shares(experts: int, ranks: int) -> None:
    """Refuse workers that would not have equally many of a layer's experts.

    Raises:
        InputError: naming sizes that would do.
    """
    if experts % ranks:
        fitting = [str(size) for size in (2, 4, 8, 16) if experts % size == 0]
        got, expected = f"{ranks} for a model with {experts} experts", "a divisor of that number"
        fix = f"Set it to {' or '.join(fitting)}." if fitting else "Remove it."
        raise _refused("trainer.expertParallelSize", got, expected, fix, "")


def _require_all_experts(spec: LoRARLJobSpec, model: ModelSizes) -> None:
    """Refuse adapters that share matrices, but not on all experts: a worker may have none of those that have one.

    Raises:
        InputError: naming a layer of an expert that has one, if any has.
    """
    adapted = expert_layers(layer.name for layer in model.adapted(spec.adapter))
    counts = Counter(map(of_all_experts, adapted))
    expected = "perExpert, or adapters on all experts of a layer"
    hint = "Remove it, or let spec.adapter.targetModules name {}."
    if not counts:
        got = f"{spec.adapter.experts} without an adapter on any expert"
        raise _refused("adapter.experts", got, expected, hint.format("their layers"), "")
    if few := next((layer for layer in adapted if counts[of_all_experts(layer)] < model.experts), None):
        got = f"{spec.adapter.experts} for adapters on {counts[of_all_experts(few)]} of {model.experts} experts ({few})"
        raise _refused("adapter.experts", got, expected, hint.format("those of all"), "")


def _refused(field: str, got: object, expected: str, hint: str, model: str = " for a mixture of experts") -> InputError:
    return InputError(f"spec.{field}", f"{got}{model}", expected, hint)
