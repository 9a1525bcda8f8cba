"""Credentials by name: folders laid out as Kubernetes mounts a Secret, one file a key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import InputError

type Secrets = Mapping[str, Mapping[str, str]]
"""Keys and values of each Secret, by the Secret's name."""

SECRETS_DIR_VARIABLE = "LORARL_SECRETS_DIR"


def secrets_dir() -> Path:
    """Where secrets lie: $LORARL_SECRETS_DIR, or ~/.config/lorarl/secrets."""
    named = os.environ.get(SECRETS_DIR_VARIABLE)
    return Path(named) if named else Path.home() / ".config" / "lorarl" / "secrets"


def read_secret(name: str, field: str = "credentialsSecret") -> dict[str, str]:
    """The keys and values of the secret `name`: the files of the folder `secrets_dir()/name`, trailing newlines stripped.

    Files whose names begin with a dot are left out: in a mounted Secret they are the kubelet's own.

    Raises:
        InputError: There is no such folder, it is empty, or a file cannot be read. Never says a value.
    """
    folder = secrets_dir() / name
    make = (
        f"Make it: mkdir -p -m 700 {folder}, then one file a key, as {folder}/AWS_ACCESS_KEY_ID with the key in it. "
        f"${SECRETS_DIR_VARIABLE} moves the place."
    )
    if not folder.is_dir():
        raise InputError(field, repr(name), f"a folder {folder}", make)
    try:
        files = [file for file in sorted(folder.iterdir()) if file.is_file() and not file.name.startswith(".")]
        values = {file.name: file.read_text(encoding="utf-8").rstrip("\r\n") for file in files}
    except OSError as error:
        raise InputError(
            field, repr(name), f"files that can be read in {folder}", f"{error.strerror}: {error.filename}."
        ) from None
    except UnicodeDecodeError:
        raise InputError(
            field, repr(name), f"text files in {folder}", "Each file holds one value as UTF-8 text."
        ) from None
    if not values:
        raise InputError(field, repr(name), f"at least one file in {folder}", make)
    return values


def read_secrets(spec: LoRARLJobSpec) -> Secrets:
    """Read every Secret that the manifest names.

    Raises:
        InputError: one is not there.
    """
    return {name: read_secret(name, field) for field, name in spec.secrets.items()}


def secret_of(secrets: Secrets, name: str | None) -> Mapping[str, str]:
    """Return a Secret's keys and values; empty where the manifest names none."""
    return secrets[name] if name else {}
