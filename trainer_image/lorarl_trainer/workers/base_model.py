"""The base model on a worker's machine: judged for its GPUs, and only then fetched."""

from __future__ import annotations

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.nvidia_smi import largest_gpu
from lorarl_trainer.planning.verdict import judge
from lorarl_trainer.storage.base_model import BaseModel, fetch_base_config, fetch_base_model, is_remote
from lorarl_trainer.storage.secrets import Secrets


def fetch_fitting_model(spec: LoRARLJobSpec, secrets: Secrets) -> BaseModel:
    """Fetch the base model to this machine. No weight of a remote one is downloaded if the job cannot fit the GPUs.

    Raises:
        LorarlError: there is no usable model, no space for it, or the GPUs are too small or too old.
    """
    if spec.on_gpu and is_remote(spec) and (gpu := largest_gpu()) is not None:
        judge(spec, fetch_base_config(spec, secrets), gpu)
    return fetch_base_model(spec, secrets)
