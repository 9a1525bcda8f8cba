"""A job that does not fit into the memory is refused before anything loads, with what would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from lorarl_api.rules import broken_rules
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.errors import InputError, OutOfMemoryError
from lorarl_trainer.planning.changes import Change, changes
from lorarl_trainer.planning.choice import JobPlan, choose_plan
from lorarl_trainer.planning.layouts import require_layout
from lorarl_trainer.planning.memory import MemoryPlan, gigabytes
from lorarl_trainer.planning.separate import engine_table

_IDLE = 0.9
"""Share of an idle GPU's or machine's memory that is free at the least."""


def require_fit(plan: JobPlan) -> None:
    """Refuse a job that cannot fit.

    Raises:
        InputError: the job does not fit; the message has the table, and what would make it fit.
        OutOfMemoryError: it would fit, but something else uses the GPU's memory. A later attempt may find it free.
    """
    if plan.fits:
        return
    memory, on_gpu = plan.memory, isinstance(plan.there, Gpu)
    if _would_fit_alone(plan):
        what, others = ("GPU", "GPUs") if on_gpu else ("machine", "machines")
        raise OutOfMemoryError(
            f"only {gigabytes(plan.there.free)} of the {what}'s {gigabytes(plan.there.total)} GB are free: other "
            f"processes use the rest. Stop them, or run the job on other {others}."
        )
    if memory.fits and plan.separate:
        raise _without_room_for_engines(plan, plan.separate)
    place = "on each GPU" if on_gpu else "for each worker"
    got = f"a job that needs {gigabytes(memory.needed)} GB {place}"
    if memory.needed <= memory.gpu.free:
        left, least = gigabytes(memory.execution.engine.kv_cache_bytes), gigabytes(memory.kv_cache_least)
        got = f"{left} GB left for vLLM's KV cache, of which one sequence takes {least}"
    raise InputError(
        "spec",
        got,
        f"at most the {gigabytes(memory.gpu.free)} GB that are free there",
        f"{remedies(plan)}\n{memory.table()}",
    )


def _without_room_for_engines(plan: JobPlan, memory: MemoryPlan) -> InputError:
    on_gpu, free = isinstance(plan.there, Gpu), gigabytes(memory.gpu.free)
    return InputError(
        "spec.rollout.separateEngines",
        f"engines that need {gigabytes(memory.least)} GB {'on each GPU' if on_gpu else 'each'} at the least",
        f"at most the {free} GB that are free there, of which gpuMemoryFraction is theirs"
        if on_gpu
        else f"at most the {free} GB that are its share of the machine",
        f"{remedies(plan)}\n{engine_table(memory)}",
    )


def _would_fit_alone(plan: JobPlan) -> bool:
    """Return whether the job would fit if no other process used the memory."""
    whole = replace(plan.there, free=int(_IDLE * plan.there.total))
    return plan.there.free < whole.free and choose_plan(plan.spec, plan.model, whole).fits


def remedies(plan: JobPlan) -> str:
    """Say what would make a job fit: each change that is enough by itself, or else all that are needed together."""
    if plan.fits:
        return ""
    # What may run in a cluster must still be able to: a refusal there has the same words.
    planned = partial(_planned, plan, not any(broken_rules(plan.spec, in_cluster=True)))
    alone: dict[tuple[str, ...], Change] = {}
    together: dict[tuple[str, ...], Change] = {}
    for change in changes(plan):
        if change.fields not in alone and _fits(planned([change])):
            alone[change.fields] = change
    if alone:
        return _sentence(alone.values(), ", or ")
    for change in changes(plan):
        if len(change.fields) > 1:
            continue  # its fields have changes by themselves, with which it would not agree
        more = together | {change.fields: change}
        if (found := planned(more.values())) is None:
            continue
        together = more
        if found.fits:
            return _sentence(_only_needed(planned, list(together.values())), ", and ")
    return f"Use {'GPUs' if isinstance(plan.there, Gpu) else 'a machine'} with more memory, or a smaller model."


def _sentence(made: Iterable[Change], between: str) -> str:
    made = list(made)
    told = between.join(map(str, made))
    return " ".join([f"{told[0].upper()}{told[1:]}.", *(change.cost for change in made if change.cost)])


def _planned(plan: JobPlan, in_cluster: bool, made: Iterable[Change]) -> JobPlan | None:
    """Return the plan of a job with changes; None if a manifest with them is refused."""
    spec = plan.spec
    for change in made:
        spec = change.applied(spec)
    if any(broken_rules(spec, in_cluster=in_cluster)):
        return None
    try:
        require_layout(spec, plan.model)
        return choose_plan(spec, plan.model, plan.there)
    except InputError:  # what one of them needs, another one rules out
        return None


def _fits(plan: JobPlan | None) -> bool:
    return plan is not None and plan.fits


def _only_needed(planned: Callable[[Iterable[Change]], JobPlan | None], made: list[Change]) -> list[Change]:
    for change in list(made):
        rest = [other for other in made if other is not change]
        if _fits(planned(rest)):
            made = rest
    return made
