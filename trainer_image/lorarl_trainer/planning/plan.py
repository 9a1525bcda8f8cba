"""The plan of a job: what planning decides, and what that takes of memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu, Host
from lorarl_trainer.models.model_sizes import read_model_sizes
from lorarl_trainer.planning.adapter_slots import adapter_slots
from lorarl_trainer.planning.choice import choose_plan
from lorarl_trainer.planning.choices_table import plan_table
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.planning.remedies import require_fit
from lorarl_trainer.planning.verdict import require_gpu


def plan_job(spec: LoRARLJobSpec, model_path: Path, there: Gpu | Host, adapters: int = 1) -> ExecutionPlan:
    """Plan a job on each of its workers.

    `model_path`: the folder of its base model; configuration and headers are read, no weights. `there`: the memory of
    one worker's GPU, or on CPU of its machine. `adapters`: most that the engine is to have at a time.

    Raises:
        InputError: the GPU is too old, the job cannot fit into the memory, or the model's files do not say how large it
            is.
    """
    if isinstance(there, Gpu):
        require_gpu(there)
    model = read_model_sizes(model_path)
    plan = choose_plan(spec, model, there, adapter_slots(spec, model, there, adapters))
    if adapters > 1 and not plan.fits:
        plan = choose_plan(spec, model, there)
    require_fit(plan)
    return replace(plan.execution, table=plan_table(plan), peaks=plan.memory.peaks)
