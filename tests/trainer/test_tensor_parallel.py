"""Tensor-parallel ranks (gloo): each adapter's gradient, by name, is that of one rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from lorarl_trainer.devices.cpu import CpuDevice
from support.gradients import CASES, file_of, write_gradients_of_ranks


@pytest.fixture(scope="module")
def of_two(model_folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the gradients of two ranks."""
    folder = tmp_path_factory.mktemp("two-ranks")
    for architecture in {case.architecture for case in CASES.values()}:
        (folder / architecture).symlink_to(model_folder(architecture))
    write_gradients_of_ranks(folder, ranks=2, gpus=0, precision="fp32")
    return folder


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_have_the_gradients_of_one(of_two: Path, name: str) -> None:
    one = CASES[name].gradients(CpuDevice(), of_two, "fp32")
    two = load_file(of_two / file_of(name, "fp32"))
    assert one.keys() == two.keys()
    for tensor, expected in one.items():
        assert bool(expected.any()), tensor
        difference = ((two[tensor] - expected).norm() / expected.norm()).item()
        assert difference < 1e-5, f"{tensor}: {difference:.1e}"
