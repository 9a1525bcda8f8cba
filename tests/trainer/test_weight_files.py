"""Megatron-Bridge reads a model's tensors from files that are opened once, and prepares an export once."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import save_file

from lorarl_trainer.backends.megatron.loaded_weights import require_all_weights
from lorarl_trainer.backends.megatron.weight_files import open_files
from lorarl_trainer.backends.megatron.weights_ahead import WeightsAhead
from lorarl_trainer.errors import InputError
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


def test_a_bridge_takes_tensors_that_were_brought_ahead(colocated, tmp_path: Path) -> None:
    colocated("qwen3_moe", adapter__targetModules=["q_proj"])  # imports Megatron-Bridge
    from megatron.bridge.models.hf_pretrained.state import SafeTensorsStateSource, StateDict

    tensors = {name: torch.full((4,), float(number)) for number, name in enumerate("abcde")}
    save_file(tensors, tmp_path / "model.safetensors")
    state = StateDict(SafeTensorsStateSource(tmp_path))
    with open_files(SimpleNamespace(hf_pretrained=SimpleNamespace(state=state))) as files:
        files.bring_ahead(["b", "gone", "a", "d"], torch.device("cpu"))
        asked = ["a", "c", "d", "a", "b"]  # another order, one that was not named, one twice
        assert {name: state[name].tolist() for name in asked} == {name: tensors[name].tolist() for name in asked}
        with pytest.raises(KeyError):
            state["gone"]


def test_no_more_is_brought_ahead_than_there_is_room_for() -> None:
    read: list[str] = []
    seen = threading.Condition()

    def reading(name: str) -> torch.Tensor:
        with seen:
            read.append(name)
            seen.notify_all()
        return torch.ones(4, dtype=torch.uint8)

    names = [str(number) for number in range(100)]
    ahead = WeightsAhead(names, reading, torch.device("cpu"), most_bytes=10)
    with seen:
        assert seen.wait_for(lambda: len(read) == 3, timeout=60)
    for number, name in enumerate(names):
        assert ahead.take(name) is not None
        assert len(read) <= number + 4
    assert ahead.take("0") is None, "it was taken"
    ahead.close()


def test_what_is_passed_over_holds_nothing_up() -> None:
    names = [str(number) for number in range(100)]
    ahead = WeightsAhead(names, lambda _: torch.ones(4, dtype=torch.uint8), torch.device("cpu"), most_bytes=10)
    assert ahead.take("99") is not None
    assert ahead.take("0") is not None
    ahead.close()


def test_an_error_while_tensors_are_brought_reaches_who_takes_one() -> None:
    def reading(name: str) -> torch.Tensor:
        if name == "b":
            raise OSError("the disk is broken")
        return torch.ones(4)

    ahead = WeightsAhead(["a", "b", "c"], reading, torch.device("cpu"))
    with pytest.raises(OSError, match="the disk is broken"):
        ahead.take("c")
    ahead.close()


def test_closing_stops_what_waits_for_room() -> None:
    read: list[str] = []

    def reading(name: str) -> torch.Tensor:
        read.append(name)
        return torch.ones(4)

    ahead = WeightsAhead([str(number) for number in range(100)], reading, torch.device("cpu"), most_bytes=1)
    ahead.close()
    assert len(read) <= 1


def test_a_weight_that_the_bridge_would_not_find_is_refused() -> None:
    source = SimpleNamespace(get_all_keys=lambda: ["there", "renamed.too"])
    bridge = SimpleNamespace(hf_pretrained=SimpleNamespace(state=SimpleNamespace(source=source)))
    needed = {"there": True, "renamed": False}
    require_all_weights(needed, bridge, Path("model"))
    with pytest.raises(InputError, match=r"got model, whose files lack gone \(2 such weights\)"):
        require_all_weights({**needed, "gone": True, "gone.too": True}, bridge, Path("model"))


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
