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
    return {name: read_secret(name, field) for field, name in spec.secrets.items()}


def secret_of(secrets: Secrets, name: str | None) -> Mapping[str, str]:
    """Return a Secret's keys and values; empty where the manifest names none."""
    return secrets[name] if name else {}
