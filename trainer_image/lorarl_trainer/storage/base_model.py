"""A job's base model: its files on this machine, its fingerprint, and the name that others load it by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import CLAIMS_FOLDER, LoRARLJobSpec, claim_of
from lorarl_trainer.errors import LorarlError, unreadable
from lorarl_trainer.storage import open_store
from lorarl_trainer.storage.downloads import fetch_model, fetch_model_config, local_path
from lorarl_trainer.storage.fingerprint import fingerprint
from lorarl_trainer.storage.meter import OnBytes
from lorarl_trainer.storage.secrets import Secrets, secret_of


@dataclass(frozen=True)
class BaseModel:
    """The base model on one machine."""

    folder: Path
    fingerprint: str


def fetch_base_model(spec: LoRARLJobSpec, secrets: Secrets, on_bytes: OnBytes | None = None) -> BaseModel:
    """Fetch the base model to this machine, once for all of its processes. `on_bytes` is called with the bytes.

    Raises:
        LorarlError: there is no usable model, or no space for it.
    """
    folder = fetch_model_folder(spec, secrets, on_bytes=on_bytes)
    try:
        return BaseModel(folder, fingerprint(folder))
    except OSError as error:
        raise unreadable("spec.model.uri", spec.model.uri, folder, error) from error


def fetch_model_folder(
    spec: LoRARLJobSpec, secrets: Secrets, *, weights: bool = True, on_bytes: OnBytes | None = None
) -> Path:
    """Fetch the base model to this machine, or everything except its weights; see `fetch_model` for the errors."""
    secret = secret_of(secrets, spec.model.credentials_secret)
    open_folder = partial(open_store, field="spec.model.uri")
    return fetch_model(spec.model, secret=secret, open_folder=open_folder, weights=weights, on_bytes=on_bytes)


def fetch_base_config(spec: LoRARLJobSpec, secrets: Secrets) -> dict[str, Any]:
    """Return the content of the base model's config.json; see `fetch_model_config` for the errors."""
    secret = secret_of(secrets, spec.model.credentials_secret)
    return fetch_model_config(spec.model, secret=secret, open_folder=partial(open_store, field="spec.model.uri"))


def is_remote(spec: LoRARLJobSpec) -> bool:
    """Return whether the base model has to be downloaded."""
    return not spec.model.uri.startswith(("file:", "pvc:"))


def changed_meanwhile(spec: LoRARLJobSpec) -> LorarlError:
    """Return what to raise if machines have fetched base models with different fingerprints."""
    return LorarlError(
        f"spec.model.uri: {spec.model.uri} changed while the machines fetched it, so they do not all "
        "have the same model. Start the job again. A commit as spec.model.revision never changes."
    )


def base_model_name(spec: LoRARLJobSpec) -> str:
    """Return the name of the base model in adapter_config.json: what PEFT, transformers and vLLM load it by.

    That is the hub's name or a folder. The folder of a pvc:// model is where lorarl's pods mount its claim. None of the
    three loads from a store: an s3://, gs:// or az:// URI says which model it is, and has to be downloaded first.
    """
    uri = spec.model.uri
    if uri.startswith("hf://"):
        return uri.removeprefix("hf://")
    if claim := claim_of(uri):
        return str(Path(CLAIMS_FOLDER) / claim / uri.removeprefix(f"pvc://{claim}").lstrip("/"))
    return str(local_path(uri, "spec.model.uri").absolute()) if uri.startswith("file:") else uri


def base_model_commit(spec: LoRARLJobSpec, folder: Path) -> str | None:
    """Return the commit of an hf:// model in the hub's cache; None for another model."""
    cached = spec.model.uri.startswith("hf://") and folder.parent.name == "snapshots"
    return folder.name if cached else None
