"""The name and the commit of a job's base model."""

from __future__ import annotations

from pathlib import Path

import pytest

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.storage.base_model import base_model_commit, base_model_name

COMMIT = "c1899de289a04d12100db370d81485cdf75e47ca"


def spec(uri: str) -> LoRARLJobSpec:
    return LoRARLJobSpec.model_validate(
        {
            "model": {"uri": uri},
            "adapter": {"targetModules": ["all-linear"]},
            "algorithm": {"type": "sft"},
            "data": {"train": {"uri": "file:train.jsonl"}},
            "checkpoint": {"uri": "file:checkpoints"},
        }
    )


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("hf://Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("file:///models/base", "/models/base"),
        ("pvc://models/qwen/base", "/mnt/pvc/models/qwen/base"),
        ("pvc://models", "/mnt/pvc/models"),
        ("s3://team/models/base", "s3://team/models/base"),
    ],
)
def test_an_adapter_names_its_base_as_peft_would_load_it(uri: str, name: str) -> None:
    """A store's URI is the exception: PEFT loads from none."""
    assert base_model_name(spec(uri)) == name


def test_a_relative_folder_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert base_model_name(spec("file:base")) == str(tmp_path / "base")


def test_the_commit_is_that_of_the_hubs_cache() -> None:
    cached = Path(f"/cache/models--Qwen--Qwen3-0.6B/snapshots/{COMMIT}")
    assert base_model_commit(spec("hf://Qwen/Qwen3-0.6B"), cached) == COMMIT
    assert base_model_commit(spec("hf://Qwen/Qwen3-0.6B"), Path("/models/elsewhere")) is None
    assert base_model_commit(spec("file:///cache/snapshots/base"), Path("/cache/snapshots/base")) is None
