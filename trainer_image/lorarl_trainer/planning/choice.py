"""Which plan a job runs by: on GPUs the one with the fastest step of those that fit, on CPU the first that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu, Host
from lorarl_trainer.models.model_sizes import ModelSizes
from lorarl_trainer.planning import candidates
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.planning.execution import ExecutionPlan, kv_cache_bytes
from lorarl_trainer.planning.gpu_speeds import speed_of
from lorarl_trainer.planning.layouts import layouts
from lorarl_trainer.planning.memory import MemoryPlan, make_plan
from lorarl_trainer.planning.separate import plan_engine, processes_on_host
from lorarl_trainer.planning.step_time import StepSeconds, step_seconds, work_of
from lorarl_trainer.planning.usual import usual_contexts, usual_keys, usual_tokens
from lorarl_trainer.pods.drain import in_a_pod

_MARGIN = 0.02
"""Share of a GPU's memory that a choice leaves free, for what allowances do not cover."""
_AS_FAST = 1.01
"""A plan that takes so many times as long as the fastest counts as fast."""

type _MakePlan = Callable[[ExecutionPlan, Gpu | Host], MemoryPlan]


@dataclass(frozen=True)
class Candidate:
    """A plan for GPUs that fits, and how long its step takes."""

    memory: MemoryPlan
    seconds: StepSeconds


@dataclass(frozen=True)
class JobPlan:
    """How each worker of a job runs, and among what that was chosen.

    Attributes:
        there: a worker's GPU, or on CPU the machine, which its workers share.
        memory: what was chosen. If nothing fits, it is the plan that needs the least memory.
        seconds: of its step; None on CPU, and if nothing fits.
        fitting: on GPUs, all plans that fit, of the layouts that were considered.
        too_large: on GPUs, the plans of these layouts that do not fit.
        separate: what each separate engine takes; None for a job without any.
    """

    spec: LoRARLJobSpec
    model: ModelSizes
    there: Gpu | Host
    memory: MemoryPlan
    seconds: StepSeconds | None = None
    fitting: Sequence[Candidate] = ()
    too_large: Sequence[ExecutionPlan] = ()
    separate: MemoryPlan | None = None

    @property
    def execution(self) -> ExecutionPlan:
        """The decisions."""
        return self.memory.execution

    @property
    def fits(self) -> bool:
        """Whether the job fits: its workers, and its separate engines, unless these have pods and judge themselves."""
        return self.memory.fits and (self.separate is None or self.separate.fits or in_a_pod())


def choose_plan(spec: LoRARLJobSpec, model: ModelSizes, there: Gpu | Host, adapters: int = 1) -> JobPlan:
    """Choose how each worker of a job runs.

    `there`: a worker's GPU, or on CPU the machine, which its workers share. `adapters`: in the engine at a time.
    """
    size, separate = AdapterSize.of(spec.adapter, model), plan_engine(spec, model, there)

    def make(execution: ExecutionPlan, gpu: Gpu | Host) -> MemoryPlan:
        return make_plan(model, size, replace(execution, engine=replace(execution.engine, adapters=adapters)), gpu)

    if isinstance(there, Host):
        return JobPlan(spec, model, there, _on_host(spec, model, there, make), separate=separate)
    # The margin is for choices. A job of which little is left open may need all that is free.
    for margin in (_MARGIN, 0.0):
        gpu = replace(there, free=there.free - int(margin * there.total))
        smallest: list[MemoryPlan] = []
        fitting: list[MemoryPlan] = []
        for ranks in layouts(spec, model):
            plans = [replace(make(one, gpu), gpu=there) for one in candidates.on_gpu(spec, model, there, ranks)]
            if any(plan.fits for plan in plans):
                fitting += plans
                # Where tokens must be shared for it to fit, the next layout may be faster.
                if any(plan.fits and plan.execution.layout.context_ranks == usual_contexts(spec) for plan in plans):
                    break
            smallest.append(min(plans, key=lambda plan: (plan.needed, -plan.execution.engine.kv_cache_bytes)))
        if fitting:
            return _fastest(spec, model, there, fitting, separate)
    return JobPlan(spec, model, there, min(smallest, key=lambda plan: plan.needed), separate=separate)


def _on_host(spec: LoRARLJobSpec, model: ModelSizes, there: Host, make: _MakePlan) -> MemoryPlan:
    shares = processes_on_host(spec)
    share = Host(there.total // shares, there.free // shares)
    plans = (make(execution, share) for execution in candidates.on_host(spec, model))
    found = next(plans)
    while not found.fits and (smaller := next(plans, None)):
        found = smaller
    return found


def _fastest(
    spec: LoRARLJobSpec, model: ModelSizes, gpu: Gpu, plans: Sequence[MemoryPlan], separate: MemoryPlan | None
) -> JobPlan:
    work, speed = work_of(spec), speed_of(gpu.name)
    elsewhere = separate.execution if separate else None
    fitting = [
        Candidate(plan, step_seconds(model, plan.execution, work, speed, elsewhere)) for plan in plans if plan.fits
    ]
    fastest = min(candidate.seconds.total for candidate in fitting)
    found = min(
        (candidate for candidate in fitting if candidate.seconds.total <= _AS_FAST * fastest),
        key=lambda candidate: (_departures(spec, model, candidate.memory.execution), candidate.seconds.total),
    )
    too_large = [plan.execution for plan in plans if not plan.fits]
    return JobPlan(spec, model, gpu, found.memory, found.seconds, fitting, too_large, separate)


def _departures(spec: LoRARLJobSpec, model: ModelSizes, plan: ExecutionPlan) -> int:
    """Count how far a plan is from the usual one: of two that are as fast, the more usual one is taken.

    Giving up the KV cache counts twice. One that does not hold all sequences at their longest counts three times: the
    time is estimated with responses half as long, and longer ones would be preempted and computed again.
    """
    tokens = max(usual_tokens(plan.trainer.fused_layers), plan.trainer.least_tokens)
    return (
        ["none", "selective", "full"].index(plan.trainer.recompute)
        + 2 * len(plan.engine.offload)
        + (plan.layout.context_ranks - usual_contexts(spec))
        + (plan.layout.trainer_ranks - 1)
        + 3 * (plan.engine.kv_cache_bytes < kv_cache_bytes(model, plan))
        + abs(plan.trainer.micro_batch_tokens.bit_length() - tokens.bit_length())
        + (plan.trainer.micro_batch_keys not in (None, usual_keys(spec, plan.trainer.micro_batch_tokens)))
    )
