"""A job that does not fit into a GPU's memory is refused before anything loads, with the plan and with what would make it fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lorarl_trainer.errors import InputError
from lorarl_trainer.planning.memory import Demand, MemoryPlan, gigabytes


def require_fit(plan: MemoryPlan) -> None:
    """Refuse a job that cannot fit.

    Raises:
        InputError: with the table, and what would mend it.
    """
    if plan.fits:
        return
    needed = max(plan.peak("generation"), plan.peak("training"))
    got = f"a job that needs {gigabytes(needed)} GB on each GPU"
    if needed <= plan.gpu.free:
        got = f"{gigabytes(plan.kv_cache_bytes)} GB left for vLLM's KV cache, of which one sequence takes {gigabytes(plan.kv_cache_least)}"
    raise InputError(
        "spec",
        got,
        f"at most the {gigabytes(plan.gpu.free)} GB that are free there",
        f"{remedies(plan)}\n{plan.table()}",
    )


def remedies(plan: MemoryPlan) -> str:
    """Say what would make a job fit: each change that does by itself, or else all that it takes together; empty where it fits."""
    if plan.fits:
        return ""
    alone: dict[str, Change] = {}
    together: dict[str, Change] = {}
    for change in changes(plan.demand):
        if _fits_with(plan, [change]):
            alone.setdefault(change.field, change)
    if alone:
        return f"Set {', or '.join(map(str, alone.values()))}."
    for change in changes(plan.demand):
        together[change.field] = change
        if _fits_with(plan, together.values()):
            needed = _without_the_needless(plan, list(together.values()))
            return f"Set {', and '.join(map(str, needed))}."
    return "Take GPUs with more memory, or a smaller model."


def _fits_with(plan: MemoryPlan, made: Iterable[Change]) -> bool:
    demand = plan.demand
    for change in made:
        demand = change.applied(demand)
    return plan.for_demand(demand).fits


def _without_the_needless(plan: MemoryPlan, made: list[Change]) -> list[Change]:
    for change in list(made):
        rest = [other for other in made if other is not change]
        if _fits_with(plan, rest):
            made = rest
    return made


@dataclass(frozen=True)
class Change:
    """A change to a manifest: to what a field is set, and what that means."""

    field: str
    value: str
    demand: Mapping[str, Any]

    def applied(self, before: Demand) -> Demand:
        """Return the demand with this change."""
        return replace(before, **self.demand)

    def __str__(self) -> str:
        return f"{self.field} to {self.value}"


def changes(demand: Demand) -> Iterator[Change]:
    """What a user can change, the cheapest first; of one field the smallest change first."""
    trainer, rollout = "spec.trainer", "spec.rollout"
    for offload in (["kv_cache"], ["kv_cache", "weights"]):
        if more := frozenset(offload) - demand.offload:
            yield Change(f"{rollout}.offload", f"[{', '.join(offload)}]", {"offload": demand.offload | more})
    tokens = demand.micro_batch_tokens // 2
    while tokens >= demand.longest:
        yield Change(f"{trainer}.tokensPerMicroBatch", str(tokens), {"micro_batch_tokens": tokens})
        tokens //= 2
    for fraction in (0.5, 0.65, 0.8):
        if fraction > demand.engine_fraction:
            yield Change(f"{rollout}.gpuMemoryFraction", str(fraction), {"engine_fraction": fraction})
    for recompute in {"none": ("selective", "full"), "selective": ("full",), "full": ()}[demand.recompute]:
        yield Change(f"{trainer}.recompute", recompute, {"recompute": recompute})
    both = f"tensorParallelSize of {trainer} and {rollout}"
    for ranks in (2, 4, 8):
        if ranks > max(demand.trainer_ranks, demand.engine_ranks):
            split = {"trainer_ranks": ranks, "engine_ranks": ranks, "fused_layers": False}
            yield Change(both, f"{ranks} (with as many GPUs)", split)
