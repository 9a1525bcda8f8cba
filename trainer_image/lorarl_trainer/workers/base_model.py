"""The base model on a worker's machine: judged for its GPUs, and only then fetched."""

from __future__ import annotations

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.nvidia_smi import largest_gpu
from lorarl_trainer.planning.verdict import judge
from lorarl_trainer.storage.base_model import BaseModel, fetch_base_config, fetch_base_model, is_remote
from lorarl_trainer.storage.secrets import read_named


def fetch_fitting_model(spec: LoRARLJobSpec) -> BaseModel:
    """Fetch the base model to this machine. No weight of a remote one is downloaded if the job cannot train it.

    Raises:
        LorarlError: its Secret cannot be read, there is no usable model, no space for it, it cannot be trained, or the
            GPUs are too small.
    """
    secrets = read_named(spec.model.credentials_secret, "spec.model.credentialsSecret")
    if is_remote(spec):
        judge(spec, fetch_base_config(spec, secrets), largest_gpu() if spec.on_gpu else None)
    return fetch_base_model(spec, secrets)
