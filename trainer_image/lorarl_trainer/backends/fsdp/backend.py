"""The backend of Transformers, PEFT and FSDP2."""

from __future__ import annotations

from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.backends.backend import Backend
from lorarl_trainer.backends.fsdp.model import FsdpModel
from lorarl_trainer.devices.base import Device
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.timing import StartClock


class FsdpBackend(Backend):
    """See `Backend`. All use of PEFT is in this package."""

    @staticmethod
    def import_libraries(device: Device) -> None:
        import peft  # noqa: F401  # it imports Transformers

    @staticmethod
    def load_model(
        device: Device, spec: LoRARLJobSpec, model_path: Path, plan: ExecutionPlan, clock: StartClock
    ) -> FsdpModel:
        return FsdpModel(device, model_path, spec.adapter, plan, clock)
