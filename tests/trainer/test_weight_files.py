"""Megatron-Bridge reads a model's tensors from files that are opened once, and prepares an export once."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import save_file

from lorarl_trainer.backends.megatron.weight_files import open_files
from support.in_process import Colocated


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that have been opened."""
    names: list[str] = []
    real = safetensors.safe_open

    def counted(path: Any, *arguments: Any, **options: Any) -> Any:
        names.append(Path(path).name)
        return real(path, *arguments, **options)

    monkeypatch.setattr(safetensors, "safe_open", counted)
    return names


def test_a_file_is_opened_once_for_all_its_tensors(colocated, opened: list[str]) -> None:
    worker: Colocated = colocated("qwen3_moe", adapter__targetModules=["q_proj"])
    files = list(worker.model.glob("*.safetensors"))
    assert len(files) == 1
    assert opened.count(files[0].name) <= 2, "once for the names, if there is no index, and once for the tensors"


def test_tensors_are_found_by_name_also_where_the_index_is_wrong(colocated, tmp_path: Path) -> None:
    colocated("qwen3_moe", adapter__targetModules=["q_proj"])  # imports Megatron-Bridge
    from megatron.bridge.models.hf_pretrained.state import SafeTensorsStateSource, StateDict

    one, two = torch.arange(3.0), torch.ones(2)
    save_file({"one": one}, tmp_path / "a.safetensors")
    save_file({"two": two}, tmp_path / "b.safetensors")
    index = {"weight_map": {"one": "a.safetensors", "two": "gone.safetensors", "three": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    state = StateDict(SafeTensorsStateSource(tmp_path))
    with open_files(SimpleNamespace(hf_pretrained=SimpleNamespace(state=state))):
        assert torch.equal(state["one"], one)
        assert torch.equal(state["two"], two)
        assert "one" in state
        assert "four" not in state
        assert sorted(state["*o*"]) == ["one", "two"]


def test_a_second_export_looks_no_name_up(colocated, monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Colocated = colocated("qwen3_moe")
    worker.randomise()
    before = worker.export()
    from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry

    def refuse(registry: Any, name: str) -> None:
        raise AssertionError(f"{name} was looked up again")

    monkeypatch.setattr(MegatronMappingRegistry, "megatron_to_hf_lookup", refuse)
    worker.randomise(seed=1)
    after = worker.export()
    assert after.keys() == before.keys()
    assert not any(torch.equal(after[name], tensor) for name, tensor in before.items())
