"""Over how many tensor-parallel ranks a model can be split. Pure, and decided before anything loads."""

from __future__ import annotations

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.targets import require_vocabulary_to_split
from lorarl_trainer.planning.model_sizes import ModelSizes


def splits_evenly(model: ModelSizes, ranks: int) -> bool:
    """Return whether so many ranks each get whole heads, and equal parts of the rest.

    Several ranks may have the same head of keys and values.
    """
    even = not any(size % ranks for size in (model.heads, model.width("up_proj"), model.vocabulary))
    return even and (model.key_heads % ranks == 0 or ranks % model.key_heads == 0)


def require_layout(spec: LoRARLJobSpec, model: ModelSizes) -> None:
    """Refuse tensor-parallel sizes that Megatron or vLLM cannot split the model over.

    Either may give a head of keys and values to several ranks.

    Raises:
        InputError: naming the field, and sizes that would do.
    """
    for side, ranks in (
        ("trainer", spec.trainer.tensor_parallel_size),
        ("rollout", spec.rollout.tensor_parallel_size),
    ):
        divided = {"attention heads": model.heads, "rows of its MLP": model.width("up_proj")}
        for what, size in divided.items():
            if size % ranks:
                raise _uneven(side, ranks, f"{size:,} {what}", model)
        if model.key_heads % ranks and ranks % model.key_heads:
            raise _uneven(side, ranks, f"{model.key_heads} key-value heads", model)
    require_vocabulary_to_split(model.vocabulary, spec.trainer.tensor_parallel_size)


def _uneven(side: str, ranks: int, what: str, model: ModelSizes) -> InputError:
    fitting = [str(size) for size in (1, 2, 4, 8) if splits_evenly(model, size)]
    return InputError(
        f"spec.{side}.tensorParallelSize",
        f"{ranks} for a model with {what}",
        "a number of ranks that share them equally",
        f"Set it to {' or '.join(fitting)}.",
    )
