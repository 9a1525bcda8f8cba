"""The devices by what a job asks for."""

from __future__ import annotations

from lorarl_trainer.devices.base import Device
from lorarl_trainer.devices.cpu import CpuDevice
from lorarl_trainer.devices.cuda import CudaDevice


def get_device(gpus_per_node: int) -> Device:
    """Return the device of a job: CPU for `cluster.gpusPerNode: 0`, CUDA otherwise."""
    return CpuDevice() if gpus_per_node == 0 else CudaDevice()
