"""Which mixtures of experts the trainer takes, and what a job may ask of them.

Exactly what tests/trainer/test_experts.py compares is taken. Everything else is refused, before anything is downloaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.experts import expert_layers, of_all_experts
from lorarl_trainer.planning.families import FAMILIES

if TYPE_CHECKING:
    from lorarl_trainer.planning.model_sizes import ModelSizes

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""What config.json calls the number of a layer's experts."""
_PLAIN: Mapping[str, object] = {
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "shared_expert_intermediate_size": 0,
}
_NOT_COMPARED = "it was not compared with Transformers and vLLM"
_NO_BRIDGE = "Megatron-Bridge has no conversion for it"
_BESIDE = "PEFT 0.21 takes an adapter on its dense MLPs or shared experts for one on its experts, and loses it"
_NOT_BY_EXPERT = "PEFT 0.21 reads no adapter on single experts of it"
_OWN_CODE = "its code is the repository's own, which lorarl does not run: Transformers has none"
REASONS: Mapping[str, str] = {
    "gpt_oss": _NOT_BY_EXPERT,
    "glm4_moe": _BESIDE,
    "ernie4_5_moe": _BESIDE,
    "hy_v3": _NOT_BY_EXPERT,
    "exaone_moe": _BESIDE,
    "bailing_moe_v2": _OWN_CODE,
    "step3p5": _OWN_CODE,
    "sarvam_moe": _OWN_CODE,
    "mimo_v2_flash": _OWN_CODE,
    "minimax_m2": "its router's sigmoids and biases, and positions on a part of each head, were not compared",
    "deepseek_v4": "its compressed attention was not compared",
    "qwen2_moe": _NO_BRIDGE,
}
"""Why other mixtures are refused, by `model_type`, where config.json shows no other reason."""
TAKEN = ", ".join(family.models for family in FAMILIES.values() if family.experts)


def is_mixture(config: Mapping[str, Any]) -> bool:
    """Return whether a model is of a family of mixtures that the trainer takes."""
    family = FAMILIES.get(str(config.get("model_type")))
    return family is not None and family.experts is not None


def require_known_mixture(config: Mapping[str, Any]) -> None:
    """Refuse a mixture of experts of another family, or with other layers, given its config.json.

    Raises:
        InputError: it names what config.json asks for.
    """
    found = next((name for name in _COUNTS if config.get(name)), None)
    if found is None:
        return
    if not is_mixture(config):
        why = REASONS.get(str(config.get("model_type")), _NOT_COMPARED)
        raise InputError(
            "spec.model.uri",
            f"a config.json with {found} {config[found]}: a mixture of experts ({why})",
            f"a dense model, or a mixture of a tested family ({TAKEN})",
            "Choose a dense model, or one of these.",
        )
    for name, plain in _PLAIN.items():
        if (config.get(name) or plain) != plain:
            raise InputError(
                "spec.model.uri",
                f"a config.json with {name}: {config[name]}",
                f"{plain}: experts in every layer, and no others",
                "Choose another model.",
            )


def require_mixture_job(spec: LoRARLJobSpec, model: ModelSizes) -> None:
    """Refuse what a job asks of a mixture of experts and was not compared, or of experts that are not there.

    Raises:
        InputError: naming the field and the fix.
    """
    rank = spec.adapter.expert_rank
    if not model.experts:
        if rank is not None:
            raise _refused("adapter.expertRank", rank, "no value: the model has no experts", "Remove it.", "")
        if spec.adapter.shares_outer:
            expected = "perExpert: the model has no experts"
            raise _refused("adapter.experts", spec.adapter.experts, expected, "Remove it.", "")
        if (replay := spec.trainer.router_replay) is not None:
            expected = "no value: the model has no experts"
            raise _refused("trainer.routerReplay", str(replay).lower(), expected, "Remove it.", "")
        if (ranks := spec.trainer.expert_parallel_size or 1) > 1:
            raise _refused("trainer.expertParallelSize", ranks, "1: the model has no experts", "Remove it.", "")
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
