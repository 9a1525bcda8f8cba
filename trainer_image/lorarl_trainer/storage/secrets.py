"""Credentials by name, in folders like those in which Kubernetes mounts a Secret: one file per key."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_api.v1alpha1.stores import STORES
from lorarl_trainer.errors import InputError
from lorarl_trainer.masked import SECRETS_DIR_VARIABLE

type Secrets = Mapping[str, Mapping[str, str]]
"""Keys and values of each Secret, by the Secret's name."""

API_KEY = "OPENAI_API_KEY"
"""The key of a server that scores completions, or that generates them."""


def secrets_dir() -> Path:
    """Return the folder of all secrets: $LORARL_SECRETS_DIR, or ~/.config/lorarl/secrets."""
    named = os.environ.get(SECRETS_DIR_VARIABLE)
    return Path(named) if named else Path.home() / ".config" / "lorarl" / "secrets"


def read_secret(name: str, field: str = "credentialsSecret", key: str = "AWS_ACCESS_KEY_ID") -> dict[str, str]:
    """Return the keys and values of the secret `name`: the files in `secrets_dir()/name`, without trailing newlines.

    Files whose names begin with a dot are left out: in a mounted Secret they belong to the kubelet.
    `field` is the manifest's, and `key` is one that the Secret may have, both for messages.

    Raises:
        InputError: there is no such folder, it is empty, or a file cannot be read. The message never contains a value.
    """
    folder = secrets_dir() / name
    hint = (
        f"Create it with mkdir -p -m 700 {folder}, and one file per key: {folder}/{key} contains the key, "
        f"for example. To keep secrets elsewhere, set ${SECRETS_DIR_VARIABLE}."
    )
    if not folder.is_dir():
        raise InputError(field, repr(name), f"a folder {folder}", hint)
    try:
        files = [file for file in sorted(folder.iterdir()) if file.is_file() and not file.name.startswith(".")]
        values = {file.name: file.read_text(encoding="utf-8").rstrip("\r\n") for file in files}
    except OSError as error:
        raise InputError(
            field,
            f"{name!r}, but {error.filename} cannot be read ({error.strerror})",
            f"readable files in {folder}",
            "Check the file and its permissions.",
        ) from None
    except UnicodeDecodeError:
        raise InputError(
            field, repr(name), f"text files in {folder}", "Write one value as UTF-8 text into each file."
        ) from None
    if not values:
        raise InputError(field, repr(name), f"at least one file in {folder}", hint)
    return values


def read_api_key(name: str, field: str) -> str:
    """Return the key of a server, from the Secret `name` of the manifest's `field`.

    Raises:
        InputError: the Secret has none, or one that no header can carry.
    """
    if (key := read_secret(name, field, API_KEY).get(API_KEY)) is None:
        raise InputError(
            field, f"{name!r} without the key {API_KEY}", f"a Secret with the key {API_KEY}", f"Add {API_KEY}."
        )
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(
            field,
            f"{name!r}, whose {API_KEY} is empty, or has white space or letters beyond ASCII",
            "one line with the key alone",
            f"Write the key again as the whole value of {API_KEY}.",
        )
    return key


def read_secrets(spec: LoRARLJobSpec) -> Secrets:
    """Read every Secret that the manifest names. Raises InputError if one is missing or cannot be read."""
    return {name: read_secret(name, field, _usual_key(spec, field)) for field, name in spec.secrets.items()}


class _Secret(Mapping[str, str]):
    """A Secret that is read when a key is first asked for."""

    def __init__(self, read: Callable[[], Mapping[str, str]]) -> None:
        self._read = cache(read)

    def __getitem__(self, key: str) -> str:
        return self._read()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


def secrets_on_demand(spec: LoRARLJobSpec) -> Secrets:
    """Return every Secret that the manifest names, each read when a key of it is first used.

    So a command needs only those that it uses, and not the keys of trackers, servers or places that it leaves alone.
    Where a key is used, InputError is raised if its Secret is missing or cannot be read.
    """
    return {
        name: _Secret(partial(read_secret, name, field, _usual_key(spec, field)))
        for field, name in spec.secrets.items()
    }


def _usual_key(spec: LoRARLJobSpec, field: str) -> str:
    """Return a key that the Secret of a field has in most cases."""
    for part, key in (
        (".server.", API_KEY),
        (".rollout.", API_KEY),
        (".wandb.", "WANDB_API_KEY"),
        (".mlflow.", "MLFLOW_TRACKING_TOKEN"),
    ):
        if part in field:
            return key
    uris = {
        "spec.model": [spec.model.uri],
        "spec.data": [source.origin for source in (*spec.data.sources.values(), *dict(spec.data.evaluations).values())],
        "spec.checkpoint": [spec.checkpoint.uri],
        "spec.adapter": [spec.adapter.init_from or ""],
    }
    schemes = [uri.partition("://")[0] for uri in uris.get(field.rpartition(".")[0], [])]
    keys = [STORES[scheme].usual_key for scheme in schemes if scheme in STORES]
    return next((key for key in keys if key), STORES["s3"].usual_key)


def read_named(name: str | None, field: str) -> Secrets:
    """Read one Secret of the manifest, as it is mounted now; nothing if the manifest names none.

    Workers read theirs themselves, so that no key is an argument in Ray, and a new start sees a rotated key.

    Raises:
        InputError: it is missing or cannot be read.
    """
    return {name: read_secret(name, field)} if name else {}


def rereader(name: str | None, field: str) -> Callable[[], Mapping[str, str]] | None:
    """Return what reads a Secret of the manifest again. The kubelet replaces a mounted Secret within about a minute."""
    return partial(read_secret, name, field) if name else None


def secret_of(secrets: Secrets, name: str | None) -> Mapping[str, str]:
    """Return a Secret's keys and values; an empty mapping if the manifest names none."""
    return secrets[name] if name else {}
