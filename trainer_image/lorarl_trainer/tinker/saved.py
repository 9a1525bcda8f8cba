"""Weights that clients save: folders in the store of `checkpoint.uri`, whole or absent, with a PEFT adapter in each.

`tinker://RUN/weights/NAME` is the folder `RUN/weights/NAME`, in which a colon of RUN is a dash. What is acknowledged
is there after any end of the service.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.checkpoint.contents import (
    ADAPTER_MODEL,
    MANIFEST,
    STATE_FILE_BYTES,
    Manifest,
    build_checkpoint,
    is_state_file,
)
from lorarl_trainer.checkpoint.identity import training_identity
from lorarl_trainer.lora.peft_format import read_adapter, weights_bytes
from lorarl_trainer.lora.tensor_file import in_parts, read_tensors, write_tensors
from lorarl_trainer.storage import Store
from lorarl_trainer.tinker.refusals import RefusedError
from lorarl_trainer.workers.checkpoints import CheckpointingWorker

if TYPE_CHECKING:
    import torch

    from lorarl_trainer.backends.backend import Snapshot

type Kind = Literal["weights", "sampler_weights"]
_SCHEME = "tinker://"
_PATH = re.compile(_SCHEME + r"([\w:-]+)/(weights|sampler_weights)/([\w.-]+)")
_NAME = re.compile(r"[\w-][\w.-]*")
_PARTS, _PLACES = ("model.", "adapter."), ("model.uri", "model.revision")
"""What of a job's identity makes adapters fit each other, and what of that only says where the base model is."""


@dataclass(frozen=True)
class State:
    """What training continues from; see `Backend.restore`."""

    tensors: Mapping[str, torch.Tensor]
    updates: int


class SavedWeights:
    """The saved weights of a service."""

    def __init__(self, store: Store, worker: CheckpointingWorker, spec: LoRARLJobSpec, fingerprint: str) -> None:
        """Of base model and adapters go with the weights what a job's checkpoints say. `fingerprint`: of the base."""
        self._store, self._worker = store, worker
        self._about = worker.about_adapters(fingerprint)
        self._identity = {
            field: value
            for field, value in training_identity(spec, fingerprint).items()
            if field.startswith(_PARTS) and field not in _PLACES
        }

    def save(self, run: str, kind: Kind, name: str, taken: Snapshot, *, overwrite: bool = False) -> str:
        """Write a model's weights, with its optimizer unless they are for sampling; return their path.

        Raises:
            RefusedError: the name cannot be one, or is used.
            StorageError: they could not be written.
        """
        if not _NAME.fullmatch(name):
            raise RefusedError(f"{name!r} is no name of weights; use letters, digits, dots, dashes and underscores")
        path = f"{_SCHEME}{run}/{kind}/{name}"
        folder = _folder(path)
        if self._store.get(f"{folder}/{MANIFEST}") is not None:
            if not overwrite:
                raise RefusedError(f"{path} exists; use another name, or overwrite=True")
            self._store.delete([f"{folder}/{MANIFEST}"])
        adapter, config = self._worker.as_peft(taken)
        state = taken.state if kind == "weights" else {}
        checkpoint = build_checkpoint(
            taken.updates,
            taken.updates,
            adapter_config=config,
            adapter_tensors=weights_bytes(adapter),
            metadata={**self._about, "step": taken.updates},
            state={"updates": taken.updates},
            state_tensors=[write_tensors(part) for part in in_parts(state, STATE_FILE_BYTES)] if state else [],
            tokenizer=self._worker.tokenizer,
        )
        for file, content in checkpoint.files.items():
            self._store.put(f"{folder}/{file}", content)
        manifest = Manifest.of(checkpoint, run, epoch=0, created_at="", identity=self._identity)
        self._store.put(f"{folder}/{MANIFEST}", manifest.to_bytes())
        return path

    def state(self, path: str) -> State:
        """Return what training continues from.

        Raises:
            RefusedError: there are no such weights, or they are for sampling only.
        """
        manifest = self._manifest(path)
        files = [file for file in manifest.files if is_state_file(file)]
        if not files:
            raise RefusedError(f"{path} has no training state; load weights that save_state made")
        contents = [self._read(path, manifest, file) for file in files]
        return State({name: t for content in contents for name, t in read_tensors(content).items()}, manifest.step)

    def adapter(self, path: str) -> dict[str, torch.Tensor]:
        """Return the adapter's tensors by Hugging Face name. Raises RefusedError if there are no such weights."""
        return read_adapter(self._read(path, self._manifest(path), ADAPTER_MODEL), path)

    def require(self, path: str) -> None:
        """Raise RefusedError if there are no such weights."""
        self._manifest(path)

    def _manifest(self, path: str) -> Manifest:
        content = self._store.get(f"{_folder(path)}/{MANIFEST}")
        if content is None:
            raise RefusedError(f"{path} is not here; it was not saved, or its save had no answer", status=404)
        manifest = Manifest.from_bytes(content)
        for field in sorted({*manifest.identity, *self._identity}):
            if (was := manifest.identity.get(field)) != (now := self._identity.get(field)):
                raise RefusedError(
                    f"{path} is of spec.{field} {json.dumps(was)}; this service has {json.dumps(now)}. "
                    "Start one with that"
                )
        return manifest

    def _read(self, path: str, manifest: Manifest, file: str) -> bytes:
        content = self._store.get(f"{_folder(path)}/{file}")
        if fault := manifest.fault(file, content):
            raise RefusedError(f"{path} is broken: {fault}", status=404)
        assert content is not None, "it has no fault"
        return content


def _folder(path: str) -> str:
    found = _PATH.fullmatch(path)
    if found is None:
        raise RefusedError(f"{path!r} is no path of weights; expected {_SCHEME}RUN/weights/NAME")
    run, kind, name = found.groups()
    return f"{run.replace(':', '-')}/{kind}/{name}"
