"""What was chosen where a manifest leaves it open, with the reasons, for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.planning.choice import JobPlan
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.planning.gpu_speeds import is_known
from lorarl_trainer.planning.memory import aligned
from lorarl_trainer.planning.separate import engine_table, engine_title

_AS_IN_MANIFEST = "as in the manifest"


@dataclass(frozen=True)
class _Field:
    """Something that may be open: its name, what the manifest says of it, and its value in a plan."""

    name: str
    given: Callable[[LoRARLJobSpec], Any]
    value: Callable[[ExecutionPlan], str]


_TENSOR = _Field(
    "trainer.tensorParallelSize",
    lambda spec: spec.trainer.tensor_parallel_size,
    lambda plan: str(plan.layout.trainer_ranks),
)
_CONTEXT = _Field(
    "trainer.contextParallelSize",
    lambda spec: spec.trainer.context_parallel_size,
    lambda plan: str(plan.layout.context_ranks),
)
_FIELDS = (
    _Field(
        "trainer.tokensPerMicroBatch",
        lambda spec: spec.trainer.tokens_per_micro_batch,
        lambda plan: str(plan.trainer.micro_batch_tokens),
    ),
    _Field("trainer.recompute", lambda spec: spec.trainer.recompute, lambda plan: plan.trainer.recompute),
    _Field(
        "rollout.offload", lambda spec: spec.rollout.offload, lambda plan: f"[{', '.join(sorted(plan.engine.offload))}]"
    ),
)


def plan_title(spec: LoRARLJobSpec) -> str:
    """Return the line above `plan_table`."""
    if not spec.on_gpu:
        return "memory of each worker:"
    return "plan for each of the trainer's GPUs:" if spec.separate_engines else "plan for each GPU:"


def plan_table(plan: JobPlan) -> str:
    """Return what was chosen, and what the job takes of the memory."""
    tables = [choices_table(plan)] if plan.seconds else []
    tables.append(plan.memory.table())
    if plan.separate:
        tables.append(f"{engine_title(plan.spec)}\n{engine_table(plan.separate)}")
    return "\n\n".join(tables)


def choices_table(plan: JobPlan) -> str:
    """Return what was chosen for a GPU, and the seconds that a step takes with this and with other values."""
    assert plan.seconds is not None, "it has been chosen for a GPU"
    rows = [("", "chosen", "seconds of a step with it, and with others"), *_layout(plan), *_choices(plan)]
    if plan.execution.rollouts:
        rows.append(_fraction(plan))
    return f"{aligned(rows)}\n\n{_time(plan)}"


def choices_line(plan: JobPlan) -> str:
    """Return what was chosen where the manifest leaves it open, in one line."""
    assert plan.seconds is not None, "it has been chosen for a GPU"
    chosen = [f"{name} {value}" for name, value, why in (*_layout(plan), *_choices(plan)) if why != _AS_IN_MANIFEST]
    return f"{', '.join(chosen)}; about {_brief(plan.seconds.total)} s a step"


def _layout(plan: JobPlan) -> Iterator[tuple[str, str, str]]:
    spec, execution = plan.spec, plan.execution
    alike = execution.layout.trainer_ranks == execution.layout.engine_ranks
    trainer = "the smallest that fits"
    if len({one.memory.execution.layout.trainer_ranks for one in plan.fitting}) > 1:
        trainer = _compare(plan, _TENSOR, str(execution.layout.trainer_ranks))
    if spec.rollout.tensor_parallel_size is not None and alike:
        trainer = "the same as rollout.tensorParallelSize, so that both share the base model"
    engine = "the same, so that both share the base model"
    if execution.layout.base_shards > 1:
        trainer, engine = "trainers of fsdp share the base's layers instead", "the smallest that fits"
    for name, given, ranks, why in (
        ("trainer.tensorParallelSize", spec.trainer.tensor_parallel_size, execution.layout.trainer_ranks, trainer),
        (
            "rollout.tensorParallelSize",
            spec.rollout.tensor_parallel_size,
            execution.layout.engine_ranks,
            engine,
        ),
    ):
        if execution.rollouts or name.startswith("trainer"):
            yield name, str(ranks), _AS_IN_MANIFEST if given is not None else why
    considered = [execution, *(one.memory.execution for one in plan.fitting), *plan.too_large]
    if any(one.layout.context_ranks > 1 for one in considered):
        yield _row(plan, _CONTEXT)


def _choices(plan: JobPlan) -> Iterator[tuple[str, str, str]]:
    for field in _FIELDS if plan.execution.rollouts else _FIELDS[:2]:
        yield _row(plan, field)


def _row(plan: JobPlan, field: _Field) -> tuple[str, str, str]:
    value = field.value(plan.execution)
    return field.name, value, _AS_IN_MANIFEST if field.given(plan.spec) is not None else _compare(plan, field, value)


def _compare(plan: JobPlan, field: _Field, value: str) -> str:
    """Return the seconds of the fastest step with the chosen value, and with each other one."""
    best: dict[str, float] = {}
    for candidate in plan.fitting:
        other = field.value(candidate.memory.execution)
        best[other] = min(best.get(other, float("inf")), candidate.seconds.total)
    too_large = dict.fromkeys(other for one in plan.too_large if (other := field.value(one)) not in best)
    assert plan.seconds is not None, "it has been chosen for a GPU"
    others = [f"{other} {_brief(seconds)}" for other, seconds in best.items() if other != value]
    told = [_brief(plan.seconds.total), *others, *([f"too large: {', '.join(too_large)}"] if too_large else [])]
    return "; ".join(told)


def _fraction(plan: JobPlan) -> tuple[str, str, str]:
    memory = plan.memory
    taken = sum(line.bytes for line in memory.lines if line.what.startswith(("vLLM", "KV cache")))
    value = f"{taken / memory.gpu.total:.2f}"
    why = "what the KV cache needs, up to what is free while it is there"
    if (most := plan.spec.rollout.gpu_memory_fraction) is not None:
        why = f"at most {most:g}, {_AS_IN_MANIFEST}"
    return "rollout.gpuMemoryFraction", value, why


def _time(plan: JobPlan) -> str:
    assert plan.seconds is not None and isinstance(plan.there, Gpu), "it has been chosen for a GPU"
    seconds, gpu = plan.seconds, f"an {plan.there.name}" if plan.there.name else "a GPU of this size"
    like = "" if is_known(plan.there.name) else ", as fast as an A100"
    parts = f"generation {_brief(seconds.generation)}, training {_brief(seconds.training)}"
    if seconds.moving >= 0.05:
        parts += f", releasing and restoring memory {_brief(seconds.moving)}"
    if plan.separate:
        parts += ", which overlap" if seconds.overlaps else ", in turns: rollout.maxStaleness lets them overlap"
    return (
        f"About {_brief(seconds.total)} s a step on {gpu}{like}, with prompts at their maximum length and "
        f"completions at half of theirs on average: {parts}."
    )


def _brief(seconds: float) -> str:
    """Write seconds with two or three digits that mean something."""
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.2g}" if seconds < 1 else f"{seconds:.3g}"
