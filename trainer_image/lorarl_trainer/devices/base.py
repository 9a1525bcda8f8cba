"""The interface of a device: what a worker computes on, and how its process is set up for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver describes it before the job begins.

    Attributes:
        total, free: bytes of memory.
        name: the product's.
        capability: CUDA's compute capability; None if it is not known.
    """

    total: int
    free: int
    name: str = ""
    capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class Host:
    """A machine's or container's main memory before the job begins, in bytes: all of it, and what a job can take."""

    total: int
    free: int


def least_memory(found: Sequence[Gpu | Host]) -> Gpu | Host:
    """Return what every worker of a job has, given what each has. GPUs of several products count as the first one."""
    return replace(found[0], total=min(one.total for one in found), free=min(one.free for one in found))


class Device(Protocol):
    """One kind of device. Made before torch is imported in a worker process."""

    name: str
    distributed_backend: str
    """The backend of torch.distributed."""

    def environment(self, threads: int) -> dict[str, str]:
        """Return the variables that a worker process needs before it imports torch."""

    def select(self, local_rank: int) -> Any:
        """Make the device of the worker with this rank on its machine the current one; return it as a torch.device."""

    def memory(self) -> Gpu | Host:
        """Return the memory of this worker's GPU, or on CPU that of its machine, which all its workers share."""

    def synchronize(self) -> None:
        """Wait until the device has done everything it was asked to, so that a clock can be read."""
