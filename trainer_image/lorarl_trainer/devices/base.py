"""The interface of a platform: where tensors live, and how Megatron is set up there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver describes it before the job begins: bytes of memory, and the product's name."""

    total: int
    free: int
    name: str = ""


class Platform(Protocol):
    """One kind of device. Constructed before torch is imported in a worker process."""

    name: str
    distributed_backend: str
    packs_sequences: bool
    """Sequences share a row without padding; otherwise each has a padded row of its own."""

    def environment(self, threads: int) -> dict[str, str]:
        """Return the variables that a worker process needs before it imports torch."""

    def device(self, local_rank: int) -> Any:
        """Return the torch.device of the worker with this rank on its machine, and make it current."""

    def prepare_megatron(self) -> None:
        """Make megatron.core and megatron.bridge importable and usable here. Called once, before either is imported."""

    def configure_provider(self, provider: Any) -> None:
        """Choose the layer implementation and the fusions of a Megatron-Bridge model provider."""

    def memory(self) -> Gpu | None:
        """Return the memory of this worker's GPU; None on CPU."""

    def attention_mask(self, length: int) -> Any:
        """Return the mask [1, 1, length, length] (True = hidden) that Megatron's attention needs, or None where it is causal by itself."""

    def synchronize(self) -> None:
        """Wait until the device has done what was asked of it, so that a clock tells the truth."""


def get_platform(gpus_per_node: int) -> Platform:
    """Return the platform of a job: CPU for `cluster.gpusPerNode: 0`, CUDA otherwise."""
    if gpus_per_node == 0:
        from lorarl_trainer.devices.cpu import CpuPlatform

        return CpuPlatform()
    from lorarl_trainer.devices.cuda import CudaPlatform

    return CudaPlatform()
