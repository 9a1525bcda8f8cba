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

    def environment(self, threads: int, *, tensor_parallel: bool = False) -> dict[str, str]:
        """Return the variables that a worker process needs before it imports torch.

        `threads`: how many it may use: its share of the machine's CPUs.
        """

    def select(self, local_rank: int) -> Any:
        """Make the device of the worker with this rank on its machine the current one; return it as a torch.device."""

    def memory(self) -> Gpu | Host:
        """Return the memory of this worker's GPU, or on CPU that of its machine, which all its workers share."""

    def unneeded(self) -> int:
        """Return the bytes that torch keeps for later although not all were needed at once since the last call.

        Tensors of ever other sizes leave pieces that fit none of the next ones. torch gives them up before it runs out
        of memory.
        """

    def retries(self) -> int:
        """Return how often since the start torch found no room for a tensor, and gave such pieces up to make some.

        The device has nothing to do meanwhile.
        """

    def synchronize(self) -> None:
        """Wait until the device has done everything it was asked to, so that a clock can be read."""
