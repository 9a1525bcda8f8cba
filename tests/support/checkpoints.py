"""Small checkpoints, and a reader that believes nothing: it checks a job's folder with json and hashlib alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from safetensors.numpy import save

from lorarl_trainer.checkpoint import Checkpoint, CheckpointStore, build_checkpoint
from lorarl_trainer.checkpoint.contents import ADAPTER_CONFIG, ADAPTER_MODEL
from lorarl_trainer.storage import Store

JOB = "gsm8k"
IDENTITY = {"model.uri": "hf://org/base", "adapter.rank": 8, "adapter.targetModules": ["all-linear"], "trainer.seed": 0}


def checkpoint(step: int, writer: str = "", evaluations: Mapping[str, str] | None = None) -> Checkpoint:
    """The state after `step`; its bytes differ from one `writer` to another. `evaluations`: digests by name."""
    salt = float(int.from_bytes(hashlib.sha256(writer.encode()).digest()[:2]))
    return build_checkpoint(
        step,
        step,
        adapter_config={"peft_type": "LORA", "r": 8},
        adapter_tensors=_tensor_file("q_proj.lora_A.weight", step + salt),
        metadata={"step": step, "evaluations": dict(evaluations or {})},
        state={"position": step},
        state_tensors=[_tensor_file("q_proj.lora_A.weight.exp_avg", step)],
    )


def small_checkpoint(step: int, writer: str = "") -> Checkpoint:
    """As `checkpoint`, in two files: one that is the same for every writer, and one that is not."""
    whole = checkpoint(step, writer)
    return replace(whole, files={path: whole.files[path] for path in (ADAPTER_CONFIG, ADAPTER_MODEL)})


def checkpoints(store: Store, keep: int = 2, **identity: object) -> CheckpointStore:
    return CheckpointStore(store, JOB, keep=keep, identity={**IDENTITY, **identity})


def read_latest(store: Store) -> dict[str, Any]:
    return dict(json.loads(store.get(f"{JOB}/latest.json") or b"{}"))


def require_whole(store: Store) -> int | None:
    """What a reader relies on: latest.json and everything it lists is whole. Returns the step it points to.

    A reader in the midst of publications may see a listed folder go; it then looks again, as docs/checkpoints.md says.
    """
    for _ in range(100):
        latest = read_latest(store)
        faults = [fault for folder in latest.get("checkpoints", []) for fault in _faults(store, folder)]
        if latest == read_latest(store):
            assert not faults, (latest, faults)
            if latest.get("path") is None:
                return None
            assert latest["path"] == latest["checkpoints"][-1]
            adapter = store.get(f"{JOB}/{latest['path']}/lora_adapter/adapter_model.safetensors")
            assert hashlib.sha256(adapter or b"").hexdigest() == latest["adapterSha256"]
            return int(latest["step"])
    raise AssertionError("latest.json did not stand still for one look")


def _tensor_file(name: str, value: float) -> memoryview:
    return memoryview(save({name: np.full((8, 4), value, np.float32)}))


def _faults(store: Store, folder: str) -> list[str]:
    manifest = store.get(f"{JOB}/{folder}/checkpoint.json")
    if manifest is None:
        return [f"{folder}: no checkpoint.json"]
    faults = []
    for path, expected in json.loads(manifest)["files"].items():
        data = store.get(f"{JOB}/{folder}/{path}")
        if data is None or len(data) != expected["size"] or hashlib.sha256(data).hexdigest() != expected["sha256"]:
            faults.append(f"{folder}/{path}")
    return faults
