"""A GPU's memory while a job runs: what it takes is compared with the plan, and running out of it is explained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

from lorarl_trainer.devices.base import Gpu, Host
from lorarl_trainer.errors import OutOfMemoryError
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.planning.memory import gigabytes

_WORDS = "out of memory"

type Phase = Literal["generation", "training"]


class Memory(Protocol):
    """What a device says of its memory: see `Device`."""

    def memory(self) -> Gpu | Host:
        """See `Device.memory`."""

    def unneeded(self) -> int:
        """See `Device.unneeded`."""

    def retries(self) -> int:
        """See `Device.retries`."""


class MemoryWatch:
    """Compares what each phase of a step takes of a GPU with its plan.

    Allocators keep what they have got, so what is missing at the end of a phase is the most that it took, and pieces
    that it had no use for.
    """

    def __init__(self, plan: ExecutionPlan, device: Memory) -> None:
        """Begin before anything is loaded."""
        self._plan, self._device = plan, device
        before = device.memory()
        self._before = before.free if isinstance(before, Gpu) else None
        self._taken: dict[Phase, int] = {}
        self._retries = self._retries_before = 0
        self._warned = False

    def ended(self, phase: Phase) -> None:
        """Look at the memory at the end of a phase. On a CPU, the system's own view is too vague."""
        if self._before is None:
            return
        self._taken[phase] = self._before - self._device.memory().free - self._device.unneeded()
        if phase == "training":
            self._retries_before, self._retries = self._retries, self._device.retries()

    @property
    def columns(self) -> dict[str, float]:
        """What each phase took last, in GB, and the last update's retries, as columns of metrics.jsonl."""
        columns = {f"gpu_memory/{phase}": taken / 1e9 for phase, taken in self._taken.items()}
        if "training" in self._taken:
            columns["gpu_memory/retries"] = self._retries - self._retries_before
        return columns

    def warnings(self) -> tuple[str, ...]:
        """Return at most once in a run that a phase took more than planned."""
        if self._warned or not (found := missed(self._plan, self._taken)):
            return ()
        self._warned = True
        return (found,)


def missed(plan: ExecutionPlan, taken: dict[Phase, int]) -> str | None:
    """Return how a step's phases took more than planned; None if they did not.

    Unless the KV cache is given up in between, an allocator keeps in one phase what it got in the other.
    """
    planned: dict[Phase, int] = {"generation": plan.peaks[0], "training": plan.peaks[1]}
    if "kv_cache" not in plan.engine.offload:
        planned = dict.fromkeys(planned, max(plan.peaks))
    over = [
        f"{phase} took {gigabytes(size)} GB, planned {gigabytes(planned[phase])}"
        for phase, size in taken.items()
        if size > planned[phase]
    ]
    if not over:
        return None
    return (
        f"a GPU's memory was planned too low: {'; '.join(over)}. Please report this with the plan. If memory runs out, "
        "lower spec.trainer.tokensPerMicroBatch or spec.rollout.gpuMemoryFraction."
    )


@contextmanager
def gpu_memory_explained(doing: str, table: str | None) -> Iterator[None]:
    """Turn the error of a GPU without memory into ours.

    torch has its own error for it. vLLM's allocator, CUDA and NCCL raise a RuntimeError with these words.

    `table`: what was planned for the GPU's memory; None if that is not known.

    Raises:
        OutOfMemoryError: the GPU's memory is used up.
    """
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        if _WORDS not in str(error).lower():
            raise
        planned = f" The memory was planned as follows.\n{table}" if table else ""
        raise OutOfMemoryError(
            f"the GPU's memory was used up while {doing} ({str(error).partition('. GPU')[0]}). "
            "Lower spec.trainer.tokensPerMicroBatch or spec.rollout.gpuMemoryFraction, or set "
            f"spec.trainer.recompute: selective, or spec.rollout.offload: [kv_cache].{planned}"
        ) from error
