"""What a job may ask of a quantized base. Pure, and decided before anything loads."""

from __future__ import annotations

from collections.abc import Iterator

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.models.model_sizes import VOCABULARY_MULTIPLE
from lorarl_trainer.models.shape import ModelShape


def require_quantizable(spec: LoRARLJobSpec, model: ModelShape) -> None:
    """Refuse a quantized base of a model that was not compared, or that trainer and engine would not share.

    Raises:
        InputError: naming the field and the fix.
    """
    if why := why_not_quantized(spec, model):
        raise InputError(
            "spec.model.quantization",
            f"{spec.model.quantization} for a model {why}",
            "none for such a model",
            "Remove spec.model.quantization.",
        )


def why_not_quantized(spec: LoRARLJobSpec, model: ModelShape) -> str | None:
    """Return why a job's base cannot be quantized; None if it can."""
    return next(_reasons(spec, model), None)


def _reasons(spec: LoRARLJobSpec, model: ModelShape) -> Iterator[str]:
    if model.experts or model.frozen_experts:
        yield "with experts: quantized ones were not compared"
    if model.sees:
        yield "that also takes images: a quantized one was not compared"
    if model.states:
        yield "whose layers keep a state: a quantized one was not compared"
    if model.key_widths:
        yield "whose layers differ in their heads: a quantized one was not compared"
    if model.transposed or not model.served_as_it_is:
        yield "of this family: vLLM does not take the trainer's tensors"
    if spec.generates and model.vocabulary % VOCABULARY_MULTIPLE:
        yield f"with a vocabulary of {model.vocabulary:,}: vLLM pads it, and would have its own base"
