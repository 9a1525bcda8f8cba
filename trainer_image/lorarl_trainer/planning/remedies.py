"""A job that does not fit into a GPU's memory is refused before anything loads, with what would make it fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.errors import InputError, OutOfMemoryError
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.planning.layouts import splits_evenly
from lorarl_trainer.planning.memory import MemoryPlan, gigabytes

_IDLE = 0.9
"""Share of an idle GPU's or machine's memory that is free at the least."""


def require_fit(plan: MemoryPlan) -> None:
    """Refuse a job that cannot fit.

    Raises:
        InputError: the job does not fit; the message has the table, and what would make it fit.
        OutOfMemoryError: it would fit, but something else uses the GPU's memory. A later attempt may find it free.
    """
    if plan.fits:
        return
    if _would_fit_alone(plan):
        what, others = ("GPU", "GPUs") if isinstance(plan.gpu, Gpu) else ("machine", "machines")
        raise OutOfMemoryError(
            f"only {gigabytes(plan.gpu.free)} of the {what}'s {gigabytes(plan.gpu.total)} GB are free, since other "
            f"processes use it. End them, or give the job other {others}."
        )
    needed = max(plan.peak("generation"), plan.peak("training"))
    place = "on each GPU" if isinstance(plan.gpu, Gpu) else "for each worker"
    got = f"a job that needs {gigabytes(needed)} GB {place}"
    if needed <= plan.gpu.free:
        left, least = gigabytes(plan.execution.kv_cache_bytes), gigabytes(plan.kv_cache_least)
        got = f"{left} GB left for vLLM's KV cache, of which one sequence takes {least}"
    raise InputError(
        "spec",
        got,
        f"at most the {gigabytes(plan.gpu.free)} GB that are free there",
        f"{remedies(plan)}\n{plan.table()}",
    )


def _would_fit_alone(plan: MemoryPlan) -> bool:
    """Return whether the job would fit if no other process used the memory."""
    whole = replace(plan.gpu, free=int(_IDLE * plan.gpu.total))
    return plan.gpu.free < whole.free and replace(plan, gpu=whole).for_execution(plan.execution).fits


def remedies(plan: MemoryPlan) -> str:
    """Say what would make a job fit: each change that is enough by itself, or else all that are needed together."""
    if plan.fits:
        return ""
    alone: dict[str, Change] = {}
    together: dict[str, Change] = {}
    for change in changes(plan):
        if _fits_with(plan, [change]):
            alone.setdefault(change.field, change)
    if alone:
        return f"Set {', or '.join(map(str, alone.values()))}."
    for change in changes(plan):
        together[change.field] = change
        if _fits_with(plan, together.values()):
            needed = _only_needed(plan, list(together.values()))
            return f"Set {', and '.join(map(str, needed))}."
    return f"Use {'GPUs' if isinstance(plan.gpu, Gpu) else 'a machine'} with more memory, or a smaller model."


def _fits_with(plan: MemoryPlan, made: Iterable[Change]) -> bool:
    execution = plan.execution
    for change in made:
        execution = change.applied(execution)
    return plan.for_execution(execution).fits


def _only_needed(plan: MemoryPlan, made: list[Change]) -> list[Change]:
    for change in list(made):
        rest = [other for other in made if other is not change]
        if _fits_with(plan, rest):
            made = rest
    return made


@dataclass(frozen=True)
class Change:
    """A change to a manifest: the field, its new value, and the decisions that follow from it."""

    field: str
    value: str
    decisions: Mapping[str, Any]

    def applied(self, before: ExecutionPlan) -> ExecutionPlan:
        """Return the plan with this change."""
        return replace(before, **self.decisions)

    def __str__(self) -> str:
        return f"{self.field} to {self.value}"


def changes(plan: MemoryPlan) -> Iterator[Change]:
    """Yield what a user can change, the cheapest first; for one field the smallest change first."""
    execution = plan.execution
    if isinstance(plan.gpu, Gpu):
        yield from _changes_on_gpu(plan)
        return
    yield from _smaller_micro_batches(execution)
    yield from _recomputation(execution)


def _smaller_micro_batches(execution: ExecutionPlan) -> Iterator[Change]:
    tokens = execution.micro_batch_tokens // 2
    while tokens >= execution.longest:
        yield Change("spec.trainer.tokensPerMicroBatch", str(tokens), {"micro_batch_tokens": tokens})
        tokens //= 2


def _recomputation(execution: ExecutionPlan) -> Iterator[Change]:
    for recompute in {"none": ("selective", "full"), "selective": ("full",), "full": ()}[execution.recompute]:
        yield Change("spec.trainer.recompute", recompute, {"recompute": recompute})


def _changes_on_gpu(plan: MemoryPlan) -> Iterator[Change]:
    execution = plan.execution
    trainer, rollout = "spec.trainer", "spec.rollout"
    for offload in (["kv_cache"], ["kv_cache", "weights"]):
        if more := frozenset(offload) - execution.offload:
            yield Change(f"{rollout}.offload", f"[{', '.join(offload)}]", {"offload": execution.offload | more})
    yield from _smaller_micro_batches(execution)
    for fraction in (0.5, 0.65, 0.8):
        if fraction > execution.engine_fraction:
            yield Change(f"{rollout}.gpuMemoryFraction", str(fraction), {"engine_fraction": fraction})
    yield from _recomputation(execution)
    both = f"tensorParallelSize of {trainer} and {rollout}"
    for ranks in (2, 4, 8):
        if ranks > max(execution.trainer_ranks, execution.engine_ranks) and splits_evenly(plan.model, ranks):
            split = {"trainer_ranks": ranks, "engine_ranks": ranks}
            yield Change(both, f"{ranks} ({ranks} GPUs for each copy of the model)", split)
