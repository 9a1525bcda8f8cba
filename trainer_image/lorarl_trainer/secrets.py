"""The Secrets that a manifest names, read once."""

from __future__ import annotations

from collections.abc import Mapping

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.storage.secrets import read_secret

type Secrets = Mapping[str, Mapping[str, str]]
"""Keys and values of each Secret, by the Secret's name."""


def read_secrets(spec: LoRARLJobSpec) -> Secrets:
    """Read every Secret that the manifest names.

    Raises:
        InputError: one is not there.
    """
    tracking = spec.tracking
    named = {
        "spec.model.credentialsSecret": spec.model.credentials_secret,
        "spec.data.credentialsSecret": spec.data.credentials_secret,
        "spec.checkpoint.credentialsSecret": spec.checkpoint.credentials_secret,
        "spec.tracking.wandb.credentialsSecret": tracking.wandb.credentials_secret if tracking.wandb else None,
        "spec.tracking.mlflow.credentialsSecret": tracking.mlflow.credentials_secret if tracking.mlflow else None,
    }
    return {name: read_secret(name, field) for field, name in named.items() if name}


def secret_of(secrets: Secrets, name: str | None) -> Mapping[str, str]:
    """Return a Secret's keys and values; empty where the manifest names none."""
    return secrets[name] if name else {}
