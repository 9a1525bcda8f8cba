"""Where the adapter to start from may be: on the hub, asked by its real client, and on a claim that is mounted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.init_from import read_initial_adapter
from lorarl_trainer.lora.peft_options import DEFAULTS
from unit.trainer.launch.test_init_from import spec_from
from unit.trainer.storage.test_downloads_from_hub import Hub, serving_files

FILES = {
    "adapter_config.json": json.dumps(DEFAULTS | {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}).encode(),
    "adapter_model.safetensors": save({"base_model.model.a.lora_A.weight": np.ones((8, 2), np.float32)}),
    "README.md": b"a card",
    "optimizer.pt": b"what nobody needs here",
}
PROGRAM = """
import json, sys
from lorarl_trainer.errors import InputError, StorageError
from lorarl_trainer.launch.init_from import read_initial_adapter
from unit.trainer.launch.test_init_from import spec_from
for uri, token in json.load(sys.stdin):
    spec = spec_from(None, initFrom=uri)
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"credentials_secret": "hub"})})
    try:
        found = read_initial_adapter(spec, {"hub": {"HF_TOKEN": token} if token else {}}, "heads.tensors")
        print(json.dumps([found.rank, found.scale, len(found.weights)]))
    except InputError as error:
        print(json.dumps([error.field, error.got, error.hint]))
    except StorageError as error:
        print(json.dumps(["StorageError", str(error)]))
assert "torch" not in sys.modules
"""


@pytest.fixture
def hub() -> Iterator[tuple[str, type[Hub]]]:
    with serving_files(FILES) as served:
        yield served


def read(endpoint: str, cache: Path, *requests: tuple[str, str | None]) -> list[list[Any]]:
    search = os.pathsep.join(sys.path)
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "PYTHONPATH": search}
    environment |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(requests),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.slow
def test_an_adapter_of_the_hub_is_fetched_without_other_files(hub: tuple[str, type[Hub]], tmp_path: Path) -> None:
    endpoint, handler = hub
    [found] = read(endpoint, tmp_path, ("hf://org/tiny", None))
    assert found == [8, 2.0, len(FILES["adapter_model.safetensors"])]
    assert set(handler.served) == {"adapter_config.json", "adapter_model.safetensors"}


@pytest.mark.slow
def test_an_adapter_that_the_hub_does_not_show_is_refused_by_its_field(
    hub: tuple[str, type[Hub]], tmp_path: Path
) -> None:
    refused, allowed, missing = read(
        hub[0], tmp_path, ("hf://org/gated", "wrong"), ("hf://org/gated", "right"), ("hf://org/none", None)
    )
    assert refused[:2] == ["spec.adapter.initFrom", "hf://org/gated, which this token cannot find"]
    assert "HF_TOKEN" in refused[2] and "spec.adapter.initFrom" in refused[2]
    assert allowed[0] == 8
    assert missing[:2] == ["spec.adapter.initFrom", "hf://org/none, which this token cannot find"]


@pytest.mark.slow
def test_a_hub_that_is_away_is_no_fault_of_the_manifest(tmp_path: Path) -> None:
    [[kind, told]] = read("http://127.0.0.1:9", tmp_path, ("hf://org/tiny", None))
    assert kind == "StorageError" and told.startswith("spec.adapter.initFrom: hf://org/tiny could not be downloaded")


def test_an_adapter_on_a_claim_is_read_where_pods_mount_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lorarl_trainer.storage.uri.CLAIMS_FOLDER", str(tmp_path))
    folder = tmp_path / "adapters" / "first" / "lora_adapter"
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    spec = spec_from(tmp_path, initFrom="pvc://adapters/first/lora_adapter")
    assert spec.claims == ["adapters"]
    found = read_initial_adapter(spec, {}, "heads.tensors")
    assert found is not None and (found.rank, found.scale) == (8, 2.0)
    with pytest.raises(InputError, match=r"spec.adapter.initFrom.*pvc://others/x, which is not mounted"):
        read_initial_adapter(spec_from(tmp_path, initFrom="pvc://others/x"), {}, "heads.tensors")
