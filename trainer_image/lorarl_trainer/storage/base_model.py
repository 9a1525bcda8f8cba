"""A job's base model: its files on this machine, its fingerprint, and the name that others load it by."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import unreadable
from lorarl_trainer.storage import open_store
from lorarl_trainer.storage.downloads import fetch_model, fetch_model_config, local_path
from lorarl_trainer.storage.secrets import Secrets, secret_of

_HEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class BaseModel:
    """The base model on one machine.

    Attributes:
        folder: its folder in Hugging Face format.
        fingerprint: digest that changes with the model's content, without reading all of it.
    """

    folder: Path
    fingerprint: str


def fetch_base_model(spec: LoRARLJobSpec, secrets: Secrets) -> BaseModel:
    """Fetch the base model to this machine, once for all of its processes.

    Raises:
        LorarlError: there is no usable model, or no space for it.
    """
    folder = fetch_model_folder(spec, secrets)
    try:
        return BaseModel(folder, _fingerprint(folder))
    except OSError as error:
        raise unreadable("spec.model.uri", spec.model.uri, folder, error) from error


def fetch_model_folder(spec: LoRARLJobSpec, secrets: Secrets, *, weights: bool = True) -> Path:
    """Fetch the base model to this machine, or everything except its weights; see `fetch_model` for the errors."""
    secret = secret_of(secrets, spec.model.credentials_secret)
    return fetch_model(
        spec.model, secret=secret, open_folder=partial(open_store, field="spec.model.uri"), weights=weights
    )


def fetch_base_config(spec: LoRARLJobSpec, secrets: Secrets) -> dict[str, Any]:
    """Return the content of the base model's config.json; see `fetch_model_config` for the errors."""
    secret = secret_of(secrets, spec.model.credentials_secret)
    return fetch_model_config(spec.model, secret=secret, open_folder=partial(open_store, field="spec.model.uri"))


def is_remote(spec: LoRARLJobSpec) -> bool:
    """Return whether the base model has to be downloaded."""
    return not spec.model.uri.startswith(("file:", "pvc:"))


def base_model_name(spec: LoRARLJobSpec) -> str:
    """Return the name by which PEFT and vLLM can load the base model: the hub's name, the folder, or a store's URI."""
    uri = spec.model.uri
    if uri.startswith("hf://"):
        return uri.removeprefix("hf://")
    return str(local_path(uri, "spec.model.uri").absolute()) if uri.startswith("file:") else uri


def _fingerprint(folder: Path) -> str:
    """Return a digest of a model folder: its config.json, and the size and first mebibyte of each weights file."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(f"{file.name}:{file.stat().st_size}:".encode())
        with file.open("rb") as weights:
            digest.update(weights.read(_HEAD_BYTES))
    return digest.hexdigest()
