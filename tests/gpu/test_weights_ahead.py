"""A model's weights come to the GPU as they are in its files, faster than in turn."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lorarl_trainer.backends.megatron.weights_ahead import WeightsAhead

SHAPES = [(152_064, 1024), (7, 3), (), (0, 4), *[(18_944, 3584)] * 6, (64 * 1024**2 // 2,), (33_554_433,)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of 1.3 GB, with tensors of every size."""
    draw = torch.Generator("cuda").manual_seed(0)
    tensors = {
        str(number): torch.randn(shape, device="cuda", generator=draw).to(
            torch.float32 if number % 3 == 1 else torch.bfloat16
        )
        for number, shape in enumerate(SHAPES)
    }
    path = tmp_path / "model.safetensors"
    save_file({name: tensor.cpu() for name, tensor in tensors.items()}, path)
    return path


def test_weights_are_those_of_the_file_and_come_faster(file: Path) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    names = [str(number) for number in range(len(SHAPES))]
    torch.ones(1).to(device)
    # Each opens the file for itself, so that each maps its pages.
    with safe_open(file, framework="pt", device="cpu") as opened:
        clock = time.perf_counter()
        plain = {name: opened.get_tensor(name).to(device) for name in names}
        torch.cuda.synchronize()
        one_by_one = time.perf_counter() - clock
    with safe_open(file, framework="pt", device="cpu") as opened:
        clock = time.perf_counter()
        ahead = WeightsAhead(names, opened.get_tensor, device, most_bytes=256 * 1024**2)
        brought = {name: ahead.take(name) for name in names}
        torch.cuda.synchronize()
        seconds = time.perf_counter() - clock
        ahead.close()
    for name, tensor in plain.items():
        there = brought[name]
        assert there is not None
        assert (there.device, there.dtype) == (device, tensor.dtype)
        assert torch.equal(there, tensor)
    size = sum(tensor.nbytes for tensor in plain.values())
    print(f"{size / 1e9:.2f} GB: {size / one_by_one / 1e9:.1f} GB/s one by one, {size / seconds / 1e9:.1f} GB/s ahead")
    assert seconds < one_by_one
