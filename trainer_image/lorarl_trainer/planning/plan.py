"""The plan of a job: what planning decides, and on a GPU what that takes of its memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.planning.execution import ExecutionPlan, decide, kv_cache_bytes
from lorarl_trainer.planning.memory import plan_memory
from lorarl_trainer.planning.model_sizes import read_model_shape, read_model_sizes
from lorarl_trainer.planning.remedies import require_fit
from lorarl_trainer.planning.verdict import require_gpu


def plan_job(spec: LoRARLJobSpec, model_path: Path, gpu: Gpu | None) -> ExecutionPlan:
    """Plan a job on each of its workers.

    Args:
        spec: the job.
        model_path: the folder of its base model; configuration and headers are read, no weights.
        gpu: one worker's GPU; None on CPU.

    Raises:
        InputError: the GPU is too old, the job cannot fit into its memory, or the model's files do not say how large
            it is.
    """
    if gpu is None:
        model = read_model_shape(model_path)
        plan = decide(spec, model, None)
        return replace(plan, kv_cache_bytes=kv_cache_bytes(model, plan)) if plan.rollouts else plan
    require_gpu(gpu)
    memory = plan_memory(spec, read_model_sizes(model_path), gpu)
    require_fit(memory)
    return replace(memory.execution, memory_table=memory.table())
