"""What differs between a CPU and a CUDA machine, behind one interface."""

from lorarl_trainer.devices.base import Platform, get_platform

__all__ = ["Platform", "get_platform"]
