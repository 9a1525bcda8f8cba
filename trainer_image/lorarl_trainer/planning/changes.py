"""What a user can change in a manifest so that its job takes less memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_api.v1alpha1.rollout import SeparateEnginesSpec
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.kernels.formats import FORMATS, format_of
from lorarl_trainer.planning.choice import JobPlan
from lorarl_trainer.planning.quantization import why_not_quantized
from lorarl_trainer.planning.usual import usual_contexts

_SHORTEST = 256
"""Response tokens below which no remedy goes."""
_ENGINES = "rollout.separate_engines"
_FURTHER = "The engines take further GPUs: of the machine, or in a cluster in further pods."
_USUAL_FRACTION = SeparateEnginesSpec().gpu_memory_fraction


@dataclass(frozen=True)
class Setting:
    """A new value of a field.

    Attributes:
        path: where the spec has the field: rollout.max_response_tokens.
        value: None if the field is removed, so that it is chosen.
    """

    path: str
    value: Any

    @property
    def field(self) -> str:
        """The field in the words of the manifest."""
        return ".".join(["spec", *map(_in_manifest, self.path.split("."))])

    def applied(self, spec: LoRARLJobSpec) -> LoRARLJobSpec:
        """Return the spec with this value."""
        return _with(spec, self.path.split("."), self.value)

    def __str__(self) -> str:
        if self.value is None:
            return f"remove {self.field}"
        if isinstance(self.value, BaseModel):
            parts = self.value.model_dump(by_alias=True, exclude_unset=True)
            return f"set {self.field} to {{{', '.join(f'{name}: {value}' for name, value in parts.items())}}}"
        return f"set {self.field} to {self.value}"


def _in_manifest(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(map(str.capitalize, rest))


def _with[Part: BaseModel](part: Part, path: list[str], value: Any) -> Part:
    name, *below = path
    return part.model_copy(update={name: _with(getattr(part, name), below, value) if below else value})


@dataclass(frozen=True)
class Change:
    """A change to a manifest: of one field, or of several that belong together.

    Attributes:
        cost: a sentence on what else it changes; empty if the fields say that.
    """

    settings: tuple[Setting, ...]
    cost: str = ""

    @classmethod
    def of(cls, path: str, value: Any, cost: str = "") -> Change:
        """Return a change of one field."""
        return cls((Setting(path, value),), cost)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields in the words of the manifest."""
        return tuple(setting.field for setting in self.settings)

    def applied(self, spec: LoRARLJobSpec) -> LoRARLJobSpec:
        """Return the spec with this change."""
        for setting in self.settings:
            spec = setting.applied(spec)
        return spec

    def __str__(self) -> str:
        return " and ".join(map(str, self.settings))


_OPEN_ON_GPU = (
    "rollout.offload",
    "trainer.tokens_per_micro_batch",
    "rollout.gpu_memory_fraction",
    "trainer.recompute",
    "rollout.tensor_parallel_size",
    "trainer.tensor_parallel_size",
    "trainer.context_parallel_size",
)
"""What is chosen if it is not set."""
_WORKERS_ON_HOST = ("trainer.tensor_parallel_size", "trainer.context_parallel_size", "trainer.expert_parallel_size")
"""What makes several workers of a machine without GPUs, of which each has an equal share."""


def changes(plan: JobPlan) -> Iterator[Change]:
    """Yield what a user can change, the cheapest first; for one field the smallest change first."""
    if isinstance(plan.there, Gpu):
        yield from _changes_on_gpu(plan)
        return
    yield from _removed(plan.spec, _WORKERS_ON_HOST)
    tokens = plan.execution.trainer.micro_batch_tokens // 2
    while tokens >= plan.execution.trainer.least_tokens:
        yield Change.of("trainer.tokens_per_micro_batch", tokens)
        tokens //= 2
    for recompute in {"none": ("selective", "full"), "selective": ("full",), "full": ()}[
        plan.execution.trainer.recompute
    ]:
        yield Change.of("trainer.recompute", recompute)
    yield from _engines_on_host(plan.spec)
    yield from _shorter_responses(plan.spec)


def _changes_on_gpu(plan: JobPlan) -> Iterator[Change]:
    spec = plan.spec
    yield from _removed(spec, _OPEN_ON_GPU)
    yield from _shared_experts(plan)
    yield from _shared_contexts(plan)
    yield from _engines_on_gpus(plan)
    for times in (2, 4, 8):
        yield Change.of("cluster.gpus_per_node", times * spec.cluster.gpus_per_node)
    yield from _shorter_responses(spec)
    yield from _quantized(plan)


def _removed(spec: LoRARLJobSpec, paths: tuple[str, ...]) -> Iterator[Change]:
    for path in paths:
        part, name = path.split(".")
        if getattr(getattr(spec, part), name) is not None:
            yield Change.of(path, None)


def _shorter_responses(spec: LoRARLJobSpec) -> Iterator[Change]:
    tokens = spec.rollout.max_response_tokens // 2
    while tokens >= _SHORTEST:
        yield Change.of("rollout.max_response_tokens", tokens)
        tokens //= 2


def _engines_on_host(spec: LoRARLJobSpec) -> Iterator[Change]:
    """Yield fewer separate engines: each has an equal share of the machine, as each worker has."""
    if engines := spec.separate_engines:
        for count in range(engines.count - 1, 0, -1):
            yield Change.of(f"{_ENGINES}.count", count)
        yield Change.of(_ENGINES, None)


def _engines_on_gpus(plan: JobPlan) -> Iterator[Change]:
    """Yield engines beside the trainer, or more for those that are there, first by moving GPUs between both."""
    spec, engines = plan.spec, plan.spec.separate_engines
    if engines is None:
        if spec.generates and not plan.model.served_merged:
            yield Change.of(_ENGINES, SeparateEnginesSpec(count=1), _FURTHER)
        return
    if engines.gpu_memory_fraction < _USUAL_FRACTION:
        yield Change.of(f"{_ENGINES}.gpu_memory_fraction", _USUAL_FRACTION)
    ranks, gpus = engines.tensor_parallel_size, spec.cluster.gpus_per_node
    for count in range(engines.count - 1, 0, -1):
        more = gpus + ranks * (engines.count - count)
        yield Change((Setting("cluster.gpus_per_node", more), Setting(f"{_ENGINES}.count", count)))
        if engines.count * ranks % count == 0:
            split = engines.count * ranks // count
            yield Change((Setting(f"{_ENGINES}.count", count), Setting(f"{_ENGINES}.tensor_parallel_size", split)))
    for times in (2, 4, 8):
        if gpus > (more := engines.count * ranks * (times - 1)):
            fewer = Setting("cluster.gpus_per_node", gpus - more)
            yield Change((fewer, Setting(f"{_ENGINES}.tensor_parallel_size", times * ranks)))
    for times in (2, 4, 8):
        yield Change.of(f"{_ENGINES}.tensor_parallel_size", times * ranks)
    for times in (2, 4, 8):
        yield Change.of(f"{_ENGINES}.count", times * engines.count)


def _quantized(plan: JobPlan) -> Iterator[Change]:
    """Yield a quantized base, where the model allows one."""
    now = format_of(plan.spec.model.quantization)
    for of in FORMATS.values():
        smaller = now is None or of.bytes_of(plan.model.linear_shapes) < now.bytes_of(plan.model.linear_shapes)
        if smaller and not why_not_quantized(plan.spec, plan.model, of):
            yield Change.of("model.quantization", of.name, of.cost)


def _shared_contexts(plan: JobPlan) -> Iterator[Change]:
    """Yield numbers of the job's GPUs that could share the tokens of a micro-batch."""
    if plan.execution.backend != "megatron":
        return
    gpus = plan.spec.world_size // (plan.spec.trainer.tensor_parallel_size or 1)
    for ranks in (2, 4, 8):
        if ranks > usual_contexts(plan.spec) and gpus % ranks == 0:
            yield Change.of("trainer.context_parallel_size", ranks)


def _shared_experts(plan: JobPlan) -> Iterator[Change]:
    """Yield numbers of the job's GPUs that could share the experts of a layer."""
    spec, experts = plan.spec, plan.model.experts
    if not experts or (spec.trainer.tensor_parallel_size or 1) > 1 or usual_contexts(spec) > 1:
        return
    for ranks in (2, 4, 8):
        if experts % ranks == spec.world_size % ranks == 0:
            yield Change.of("trainer.expert_parallel_size", ranks)
