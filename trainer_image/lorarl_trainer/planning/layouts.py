"""Over how many tensor-parallel ranks a model can be split. Pure, and decided before anything loads."""

from __future__ import annotations

from collections.abc import Iterator

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.targets import require_vocabulary_to_split
from lorarl_trainer.models.model_sizes import ModelSizes
from lorarl_trainer.planning.backend_choice import backend_of
from lorarl_trainer.planning.usual import usual_contexts, usual_ranks


def splits_evenly(model: ModelSizes, ranks: int) -> bool:
    """Return whether so many ranks each get whole heads, and equal parts of the rest.

    Several ranks may have the same head of keys and values.
    """
    if model.unsplit:
        return ranks == 1
    even = not any(size % ranks for size in (model.heads, model.width("up_proj"), model.vocabulary))
    return even and (model.key_heads % ranks == 0 or ranks % model.key_heads == 0)


def require_layout(spec: LoRARLJobSpec, model: ModelSizes) -> None:
    """Refuse tensor-parallel sizes of the manifest that Megatron or vLLM cannot split the model over.

    Either may give a head of keys and values to several ranks.

    Raises:
        InputError: naming the field, and sizes that would do.
    """
    if spec.trainer.tensor_parallel_size is not None:
        _require_trainer(model, spec.trainer.tensor_parallel_size)
    if spec.rollout.tensor_parallel_size is not None:
        _require_division("rollout", model, spec.rollout.tensor_parallel_size)
    if spec.separate_engines is not None:
        _require_division("rollout.separateEngines", model, spec.separate_engines.tensor_parallel_size)


def layouts(spec: LoRARLJobSpec, model: ModelSizes) -> Iterator[tuple[int, int]]:
    """Yield the tensor-parallel ranks of trainer and engine on GPUs, the fewest first.

    A size that the manifest leaves open is a divisor of a machine's GPUs, and the same for both, so that they share the
    base model, unless the other one cannot be split like that. Trainers of fsdp are never split: where an engine is,
    they share the base's layers instead.
    """
    trainer, engine = spec.trainer.tensor_parallel_size, spec.rollout.tensor_parallel_size
    gpus = spec.cluster.gpus_per_node
    divisors = [ranks for ranks in range(1, gpus + 1) if gpus % ranks == 0]
    whole = spec.model.quantization != "none"
    if backend_of(spec, model) == "fsdp" and engine is None and spec.generates and not whole:
        yield from ((1, ranks) for ranks in divisors if _can_serve(model, ranks))
        return
    # A trainer of experts is split only if asked: its engine is not, and would have its own base.
    if trainer is not None or backend_of(spec, model) == "fsdp" or model.experts:
        yield usual_ranks(spec, model)
        return
    fitting = [ranks for ranks in divisors if _can_split(spec, model, ranks)]
    if engine is None:
        yield from ((ranks, ranks) for ranks in fitting or [1])
    elif _can_split(spec, model, engine):
        yield engine, engine
    else:
        yield from ((ranks, engine) for ranks in fitting or [1])


def _can_split(spec: LoRARLJobSpec, model: ModelSizes, ranks: int) -> bool:
    try:
        _require_trainer(model, ranks)
    except InputError:
        return False
    workers = ranks * usual_contexts(spec)
    return spec.world_size % workers == spec.adapter.rank % ranks == 0


def _can_serve(model: ModelSizes, ranks: int) -> bool:
    try:
        _require_division("rollout", model, ranks)
    except InputError:
        return False
    return True


def _require_trainer(model: ModelSizes, ranks: int) -> None:
    """Refuse so many ranks of a trainer. An engine can be split whenever a trainer can."""
    _require_division("trainer", model, ranks)
    require_vocabulary_to_split(model.vocabulary, ranks)


def _require_division(side: str, model: ModelSizes, ranks: int) -> None:
    """Refuse ranks that would not have equal parts. Megatron and vLLM may copy a key-value head to several ranks."""
    if model.unsplit and ranks > 1:
        raise InputError(
            f"spec.{side}.tensorParallelSize",
            f"{ranks} for a model {model.unsplit}",
            "1",
            "Remove it.",
        )
    divided = {"attention heads": model.heads, "rows of its MLP": model.width("up_proj")}
    for what, size in divided.items():
        if size % ranks:
            raise _uneven(side, ranks, f"{size:,} {what}", model)
    if model.key_heads % ranks and ranks % model.key_heads:
        raise _uneven(side, ranks, f"{model.key_heads} key-value heads", model)


def _uneven(side: str, ranks: int, what: str, model: ModelSizes) -> InputError:
    fitting = [str(size) for size in (1, 2, 4, 8) if splits_evenly(model, size)]
    return InputError(
        f"spec.{side}.tensorParallelSize",
        f"{ranks} for a model with {what}",
        "a number of ranks that share them equally",
        f"Set it to {' or '.join(fitting)}.",
    )
