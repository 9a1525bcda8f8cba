"""The base model's weights are read as they are, whatever file and dtype they come from."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lorarl_trainer.megatron_lora import weights
from support.in_process import Colocated

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.uint8, torch.bool]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor takes several, and the last is never whole."""
    monkeypatch.setattr(weights, "_PIECE_BYTES", 7)


def read(folder: Path, names: list[str], load_others: weights.LoadTensors | None = None) -> dict[str, torch.Tensor]:
    def nothing(missing: list[str]) -> dict[str, torch.Tensor]:
        raise KeyError(missing)

    files = weights.WeightFiles(folder, torch.device("cpu"), load_others or nothing)
    try:
        return files.load(names)
    finally:
        files.close()


@pytest.mark.usefixtures("small_pieces")
def test_tensors_come_out_as_they_went_in(tmp_path: Path) -> None:
    stream = torch.Generator().manual_seed(0)
    tensors = {f"t{i}": (torch.rand(5, 3 + i, generator=stream) * 100).to(dtype) for i, dtype in enumerate(DTYPES)}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 4)}
    names = list(tensors)
    save_file({name: tensors[name] for name in names[::2]}, tmp_path / "model-1.safetensors", {"format": "pt"})
    save_file({name: tensors[name] for name in names[1::2]}, tmp_path / "model-2.safetensors")
    found = read(tmp_path, names)
    assert list(found) == names
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(found[name], tensor), name


def test_what_is_not_known_here_is_left_to_the_bridge(tmp_path: Path) -> None:
    save_file({"eight": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn), "known": torch.ones(2)}, tmp_path / "model.safetensors")
    asked: list[str] = []

    def load_others(names: list[str]) -> dict[str, torch.Tensor]:
        asked.extend(names)
        return {name: torch.zeros(1) for name in names}

    found = read(tmp_path, ["eight", "known", "nowhere"], load_others)
    assert asked == ["eight", "nowhere"]
    assert set(found) == {"eight", "known", "nowhere"}
    assert torch.equal(found["known"], torch.ones(2))


def test_a_file_cut_short_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(200)}, file)
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(EOFError, match="ends before its tensors do"):
        read(tmp_path, ["a"])


def test_a_model_s_weights_come_this_way(colocated: Callable[..., Colocated], monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody reads them after the start: the bridge has its own way again."""
    read: list[str] = []
    load = weights.WeightFiles.load

    def noted(files: weights.WeightFiles, names: list[str]) -> dict[str, torch.Tensor]:
        read.extend(names)
        return load(files, names)

    monkeypatch.setattr(weights.WeightFiles, "load", noted)
    worker = colocated()
    with safe_open(worker.model / "model.safetensors", "pt") as file:
        assert set(read) == set(file.keys())
    assert "load_tensors" not in vars(worker.worker._model._bridge.hf_pretrained.state.source)
