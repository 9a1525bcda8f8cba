"""Which backend trains a job, and what it can do. Pure, and decided before anything loads."""

from __future__ import annotations

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.models.families import BackendName
from lorarl_trainer.models.shape import ModelShape


def backend_of(spec: LoRARLJobSpec, model: ModelShape) -> BackendName:
    """Return which backend trains a job: the manifest's, otherwise Megatron where it trains such models."""
    return spec.trainer.backend or ("megatron" if _megatron_trains(spec, model) else "fsdp")


def _megatron_trains(spec: LoRARLJobSpec, model: ModelShape) -> bool:
    longest = spec.rollout.max_prompt_tokens + spec.rollout.max_response_tokens
    whole = model.window is None or model.window >= longest
    return model.megatron and whole and not spec.adapter.dora and spec.model.quantization == "none"


def chosen_instead(spec: LoRARLJobSpec, backend: BackendName) -> str | None:
    """Return what a user should know of a backend that was chosen for the model; None if there is nothing to know."""
    if backend == "megatron" or spec.trainer.backend is not None:
        return None
    what = "this model"
    if spec.model.quantization != "none":
        what = "quantized models"
    elif spec.adapter.dora:
        what = "DoRA"
    why = f"Megatron does not train {what}"
    return (
        f"trainer.backend is fsdp (Transformers and PEFT), since {why}. "
        "Its layers are not fused, so an update takes longer"
    )


def require_backend(spec: LoRARLJobSpec, model: ModelShape) -> None:
    """Refuse what a manifest asks of a backend that cannot do it.

    Raises:
        InputError: naming the field and the fix.
    """
    if backend_of(spec, model) == "megatron":
        return
    if spec.adapter.type != "canonical_lora":
        raise InputError(
            "spec.adapter.type",
            f"{spec.adapter.type} with trainer.backend fsdp",
            "canonical_lora: PEFT has no adapter that several layers share",
            "Set spec.adapter.type: canonical_lora.",
        )
    trainer = spec.trainer
    for field, ranks, expected in (
        ("contextParallelSize", trainer.context_parallel_size, "1: its layers have the tokens of whole samples"),
        ("tensorParallelSize", trainer.tensor_parallel_size, "1: its trainers share samples, not layers"),
    ):
        if (ranks or 1) > 1:
            other = ", or set spec.trainer.backend: megatron" if _megatron_trains(spec, model) else ""
            got, hint = f"{ranks} with trainer.backend fsdp", f"Remove it{other}."
            raise InputError(f"spec.trainer.{field}", got, expected, hint)
