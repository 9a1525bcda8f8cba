"""What differs for Megatron between a CPU and a GPU."""

from __future__ import annotations

from typing import Any, Protocol

from lorarl_trainer.devices.base import Device


class Platform(Protocol):
    """How Megatron is set up on one kind of device."""

    def prepare(self) -> None:
        """Make megatron.core and megatron.bridge importable and usable here. Called before either is imported."""

    def configure_provider(self, provider: Any) -> None:
        """Choose the layer implementation and the fusions of a Megatron-Bridge model provider."""

    def attention_mask(self, length: int) -> Any:
        """Return the mask of padded rows, [1, 1, length, length], True where hidden; None if attention needs none."""


def platform_of(device: Device) -> Platform:
    """Return the set-up for a device."""
    if device.name == "cpu":
        from lorarl_trainer.backends.megatron.platform_cpu import CpuPlatform

        return CpuPlatform()
    from lorarl_trainer.backends.megatron.platform_cuda import CudaPlatform

    return CudaPlatform()
