"""The Megatron backend."""

from __future__ import annotations

import logging
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.backends.backend import Backend
from lorarl_trainer.backends.megatron.model import LoraModel
from lorarl_trainer.backends.megatron.platform import platform_of
from lorarl_trainer.devices.base import Device
from lorarl_trainer.devices.imports import compile_at_first_call, stand_ins, without
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.timing import StartClock

_WITH_IMAGES = (
    "ernie_vl gemma_vl glm_vl kimi_vl ministral3 nemotron_omni nemotron_vl qwen3_asr qwen_audio qwen_omni stepfun"
)
_FOR_IMAGES = (
    "d_fine deformable_detr deimv2 for_object_detection grounding_dino lw_detr rf_detr rt_detr"  # they import SciPy
)
_UNUSED = (
    "megatron.bridge.diffusion.models",
    "transformer_engine.pytorch.onnx_extensions",
    *(f"megatron.bridge.models.{name}" for name in _WITH_IMAGES.split()),
    *(f"transformers.loss.loss_{name}" for name in _FOR_IMAGES.split()),
)
"""Conversions of models that take images or sound, or diffuse: this backend refuses them. Megatron-Bridge imports those
of all models at every start, and these take a second. Losses for images and the export to ONNX take another."""
_OPTIONAL = ("transformer_engine.jax", "cupy", "flashinfer")
"""What Megatron and Transformer Engine import if it is installed, for JAX and for Megatron's own inference."""


class MegatronBackend(Backend):
    """See `Backend`. All use of Megatron is in this package."""

    @staticmethod
    def import_libraries(device: Device) -> None:
        for library in ("megatron", "megatron.bridge", "megatron.core"):
            logging.getLogger(library).setLevel(logging.ERROR)  # they warn about each optional package that is missing
        # It logs a traceback for each symbol that it does not find, at a level that it sets itself when it is imported.
        logging.getLogger("megatron.bridge.utils.import_utils").addFilter(lambda _: False)
        with compile_at_first_call(), without(*_OPTIONAL), stand_ins(*_UNUSED):
            platform_of(device).prepare()
            import megatron.bridge.peft.canonical_lora  # noqa: F401  # it imports the rest

    @staticmethod
    def load_model(
        device: Device, spec: LoRARLJobSpec, model_path: Path, plan: ExecutionPlan, clock: StartClock
    ) -> LoraModel:
        return LoraModel(device, model_path, spec.adapter, plan, clock)
