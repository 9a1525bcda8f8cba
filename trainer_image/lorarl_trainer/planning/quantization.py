"""What a job may ask of a quantized base. Pure, and decided before anything loads."""

from __future__ import annotations

from collections.abc import Iterator

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.kernels.formats import FORMATS, Format
from lorarl_trainer.models.model_sizes import VOCABULARY_MULTIPLE, ModelSizes
from lorarl_trainer.models.shape import ModelShape


def require_quantizable(spec: LoRARLJobSpec, model: ModelShape) -> None:
    """Refuse a quantized base of a model that was not compared, or that trainer and engine would not share.

    Raises:
        InputError: naming the field and the fix.
    """
    of = FORMATS[spec.model.quantization]
    if why := why_not_quantized(spec, model, of):
        raise InputError(
            "spec.model.quantization",
            f"{spec.model.quantization} for a model {why}",
            "none for such a model",
            "Remove spec.model.quantization.",
        )


def why_not_quantized(spec: LoRARLJobSpec, model: ModelShape, of: Format) -> str | None:
    """Return why a job's base cannot be held in a format; None if it can."""
    return next(_reasons(spec, model, of), None)


def _reasons(spec: LoRARLJobSpec, model: ModelShape, of: Format) -> Iterator[str]:
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
    linears = model.linears if isinstance(model, ModelSizes) else ()
    if uneven := [linear for linear in linears if linear.inputs % of.multiple]:
        yield f"with {uneven[0].inputs:,} inputs of {uneven[0].name}: {of.name} takes a multiple of {of.multiple}"
