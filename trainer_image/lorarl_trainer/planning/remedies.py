"""A job that does not fit into the memory is refused before anything loads, with what would make it fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lorarl_api.rules import broken_rules
from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.errors import InputError, OutOfMemoryError
from lorarl_trainer.kernels.formats import FORMATS, format_of
from lorarl_trainer.planning.choice import JobPlan, choose_plan
from lorarl_trainer.planning.memory import gigabytes
from lorarl_trainer.planning.quantization import why_not_quantized
from lorarl_trainer.planning.usual import usual_contexts

_IDLE = 0.9
"""Share of an idle GPU's or machine's memory that is free at the least."""
_SHORTEST = 256
"""Response tokens below which no remedy goes."""


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


def _would_fit_alone(plan: JobPlan) -> bool:
    """Return whether the job would fit if no other process used the memory."""
    whole = replace(plan.there, free=int(_IDLE * plan.there.total))
    return plan.there.free < whole.free and choose_plan(plan.spec, plan.model, whole).fits


def remedies(plan: JobPlan) -> str:
    """Say what would make a job fit: each change that is enough by itself, or else all that are needed together."""
    if plan.fits:
        return ""
    alone: dict[str, Change] = {}
    together: dict[str, Change] = {}
    for change in changes(plan):
        if change.field not in alone and _fits_with(plan, [change]):
            alone[change.field] = change
    if alone:
        return _sentence(alone.values(), ", or ")
    for change in changes(plan):
        more = together | {change.field: change}
        if _with(plan, more.values()) is None:
            continue
        together = more
        if _fits_with(plan, together.values()):
            return _sentence(_only_needed(plan, list(together.values())), ", and ")
    return f"Use {'GPUs' if isinstance(plan.there, Gpu) else 'a machine'} with more memory, or a smaller model."


def _sentence(made: Iterable[Change], between: str) -> str:
    made = list(made)
    told = between.join(map(str, made))
    return " ".join([f"{told[0].upper()}{told[1:]}.", *(change.cost for change in made if change.cost)])


def _with(plan: JobPlan, made: Iterable[Change]) -> LoRARLJobSpec | None:
    """Return a job's spec with changes; None if a manifest with them is refused."""
    spec = plan.spec
    for change in made:
        spec = change.applied(spec)
    return None if any(broken_rules(spec)) else spec


def _fits_with(plan: JobPlan, made: Iterable[Change]) -> bool:
    if (spec := _with(plan, made)) is None:
        return False
    try:
        return choose_plan(spec, plan.model, plan.there).fits
    except InputError:  # what one of them needs, another one rules out
        return False


def _only_needed(plan: JobPlan, made: list[Change]) -> list[Change]:
    for change in list(made):
        rest = [other for other in made if other is not change]
        if _fits_with(plan, rest):
            made = rest
    return made


@dataclass(frozen=True)
class Change:
    """A change to a manifest.

    Attributes:
        part, name: where the spec has the field: rollout, max_response_tokens.
        value: the field's new value; None if it is removed, so that it is chosen.
        cost: a sentence on what else it changes; empty if the field says that.
    """

    part: str
    name: str
    value: Any
    cost: str = ""

    @property
    def field(self) -> str:
        """The field in the words of the manifest."""
        head, *rest = self.name.split("_")
        return ".".join(["spec", self.part, head + "".join(map(str.capitalize, rest))])

    def applied(self, spec: LoRARLJobSpec) -> LoRARLJobSpec:
        """Return the spec with this change."""
        part = getattr(spec, self.part).model_copy(update={self.name: self.value})
        return spec.model_copy(update={self.part: part})

    def __str__(self) -> str:
        return f"remove {self.field}" if self.value is None else f"set {self.field} to {self.value}"


_OPEN_ON_GPU = (
    ("rollout", "offload"),
    ("trainer", "tokens_per_micro_batch"),
    ("rollout", "gpu_memory_fraction"),
    ("trainer", "recompute"),
    ("rollout", "tensor_parallel_size"),
    ("trainer", "tensor_parallel_size"),
    ("trainer", "context_parallel_size"),
)
"""What is chosen if it is not set."""


def changes(plan: JobPlan) -> Iterator[Change]:
    """Yield what a user can change, the cheapest first; for one field the smallest change first."""
    if isinstance(plan.there, Gpu):
        yield from _changes_on_gpu(plan)
        return
    tokens = plan.execution.trainer.micro_batch_tokens // 2
    while tokens >= plan.execution.trainer.least_tokens:
        yield Change("trainer", "tokens_per_micro_batch", tokens)
        tokens //= 2
    for recompute in {"none": ("selective", "full"), "selective": ("full",), "full": ()}[
        plan.execution.trainer.recompute
    ]:
        yield Change("trainer", "recompute", recompute)


def _changes_on_gpu(plan: JobPlan) -> Iterator[Change]:
    spec = plan.spec
    for part, name in _OPEN_ON_GPU:
        if getattr(getattr(spec, part), name) is not None:
            yield Change(part, name, None)
    yield from _shared_experts(plan)
    yield from _shared_contexts(plan)
    for times in (2, 4, 8):
        yield Change("cluster", "gpus_per_node", times * spec.cluster.gpus_per_node)
    tokens = spec.rollout.max_response_tokens // 2
    while tokens >= _SHORTEST:
        yield Change("rollout", "max_response_tokens", tokens)
        tokens //= 2
    yield from _quantized(plan)


def _quantized(plan: JobPlan) -> Iterator[Change]:
    """Yield a quantized base, where the model allows one."""
    now = format_of(plan.spec.model.quantization)
    for of in FORMATS.values():
        smaller = now is None or of.bytes_of(plan.model.linear_shapes) < now.bytes_of(plan.model.linear_shapes)
        if smaller and not why_not_quantized(plan.spec, plan.model, of):
            yield Change("model", "quantization", of.name, of.cost)


def _shared_contexts(plan: JobPlan) -> Iterator[Change]:
    """Yield numbers of the job's GPUs that could share the tokens of a micro-batch."""
    if plan.execution.backend != "megatron":
        return
    gpus = plan.spec.world_size // (plan.spec.trainer.tensor_parallel_size or 1)
    for ranks in (2, 4, 8):
        if ranks > usual_contexts(plan.spec) and gpus % ranks == 0:
            yield Change("trainer", "context_parallel_size", ranks)


def _shared_experts(plan: JobPlan) -> Iterator[Change]:
    """Yield numbers of the job's GPUs that could share the experts of a layer."""
    spec, experts = plan.spec, plan.model.experts
    if not experts or (spec.trainer.tensor_parallel_size or 1) > 1 or usual_contexts(spec) > 1:
        return
    for ranks in (2, 4, 8):
        if experts % ranks == spec.world_size % ranks == 0:
            yield Change("trainer", "expert_parallel_size", ranks)
