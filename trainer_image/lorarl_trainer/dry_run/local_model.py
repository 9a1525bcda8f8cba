"""`lorarl validate` and `render` judge a base model on this machine. Others are judged when their job starts."""

from __future__ import annotations

from dataclasses import replace

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.devices.nvidia_smi import largest_gpu
from lorarl_trainer.errors import InputError
from lorarl_trainer.planning.choices_table import plan_table, plan_title
from lorarl_trainer.planning.verdict import judge
from lorarl_trainer.storage.base_model import fetch_base_config
from lorarl_trainer.storage.downloads import local_path

_DOWNLOAD = "Download it, and set spec.model.uri to file: and that folder."


def judge_local_model(
    job: LoRARLJob, gpu_gigabytes: float | None = None, *, in_full: bool = False
) -> tuple[str | None, str | None]:
    """Judge a job's base model, if its folder is on this machine.

    `gpu_gigabytes`: memory of each GPU that the job will get; by default of the largest GPU here, if there is one.
    `in_full`: with the table of what was chosen and of the memory, if the memory is known.

    Returns:
        Why it cannot be trained; or what is known of a model that can be.
    """
    spec = job.spec
    unused = None
    if gpu_gigabytes is not None and not spec.on_gpu:
        unused = "--gpu-memory was not used: spec.cluster.gpusPerNode is 0"
    if not spec.model.uri.startswith("file:"):
        elsewhere = f"--gpu-memory planned nothing: {spec.model.uri} is no folder on this machine. {_DOWNLOAD}"
        return None, unused or (elsewhere if gpu_gigabytes is not None else None)
    try:
        if not local_path(spec.model.uri, "spec.model.uri").exists():
            return None, f"{spec.model.uri} is not on this machine, so the model is judged when the job starts"
        verdict = judge(spec, fetch_base_config(spec, {}), _gpu(gpu_gigabytes) if spec.on_gpu else None)
        if in_full and verdict.plan:
            return None, f"{verdict}\n\n{plan_title(spec)}\n{plan_table(verdict.plan)}"
        return None, f"{verdict}; {unused}" if unused else str(verdict)
    except InputError as error:
        return str(error), None


def _gpu(gigabytes: float | None) -> Gpu | None:
    found = largest_gpu()
    if gigabytes is None:
        return found
    size = int(gigabytes * 1e9)
    return replace(found, total=size, free=size) if found else Gpu(size, size)
