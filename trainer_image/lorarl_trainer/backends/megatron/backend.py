"""The Megatron backend."""

from __future__ import annotations

import logging
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.backends.backend import Backend
from lorarl_trainer.backends.megatron.model import LoraModel
from lorarl_trainer.backends.megatron.platform import platform_of
from lorarl_trainer.devices.base import Device
from lorarl_trainer.devices.imports import compile_at_first_call
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.timing import StartClock


class MegatronBackend(Backend):
    """See `Backend`. All use of Megatron is in this package."""

    @staticmethod
    def import_libraries(device: Device) -> None:
        """See `Backend.import_libraries`."""
        for library in ("megatron", "megatron.bridge", "megatron.core"):
            logging.getLogger(library).setLevel(logging.ERROR)  # they warn about each optional package that is missing
        # It logs a traceback for each symbol that it does not find, at a level that it sets itself when it is imported.
        logging.getLogger("megatron.bridge.utils.import_utils").addFilter(lambda _: False)
        with compile_at_first_call():
            platform_of(device).prepare()
            import megatron.bridge.peft.canonical_lora  # noqa: F401  # it imports the rest

    @staticmethod
    def load_model(
        device: Device, spec: LoRARLJobSpec, model_path: Path, plan: ExecutionPlan, clock: StartClock
    ) -> LoraModel:
        """See `Backend.load_model`."""
        return LoraModel(device, model_path, spec.adapter, plan, clock)
