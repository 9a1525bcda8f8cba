"""Files of tensors: byte for byte what the library of their format writes."""

from __future__ import annotations

import warnings

import pytest
import torch
from safetensors.torch import load, save

from lorarl_trainer.lora.tensor_file import in_parts, read_tensors, write_tensors

SHAPES = {
    "model.layers.10.b": (3, 5),
    "model.layers.9.a": (8, 2),
    "A": (1,),
    'ä "quoted"': (2, 3, 4),
    "none": (0, 4),
    "scalar": (),
}


def tensors(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=stream).to(dtype) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_file_has_the_bytes_of_the_formats_own_library(dtype: torch.dtype, metadata: dict[str, str] | None) -> None:
    assert write_tensors(tensors(dtype), metadata) == save(tensors(dtype), metadata)


def test_tensors_in_parts_of_others_are_written_as_what_they_show() -> None:
    grid = torch.arange(24.0).view(4, 6)
    shown = {"columns": grid[:, ::2], "transposed": grid.T, "one row for all": grid[:1].expand(5, 6)}
    assert write_tensors(shown) == save({name: tensor.contiguous().clone() for name, tensor in shown.items()})


def test_a_file_stays_as_it_was_when_its_tensors_change() -> None:
    ours = tensors(torch.float32)
    file, before = write_tensors(ours), save(ours)
    for tensor in ours.values():
        tensor.add_(1)
    assert file == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_files_are_read_back_whoever_wrote_them(dtype: torch.dtype) -> None:
    ours = tensors(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for file in (write_tensors(ours), bytes(write_tensors(ours)), save(ours, {"format": "pt"})):
            read = read_tensors(file)
            assert read.keys() == ours.keys()
            assert all(torch.equal(read[name], ours[name]) and read[name].dtype == dtype for name in ours)


def test_no_tensors_are_a_file_too() -> None:
    assert load(bytes(write_tensors({}))) == read_tensors(write_tensors({})) == {}


def test_tensors_are_dealt_out_by_name_to_files_of_a_size() -> None:
    sizes = {"a": 3, "b": 5, "c": 8, "d": 20, "e": 1, "f": 7}
    parts = in_parts({name: torch.zeros(size) for name, size in reversed(sizes.items())}, most_bytes=8 * 4)
    assert [list(part) for part in parts] == [["a", "b"], ["c"], ["d"], ["e", "f"]]
    assert in_parts({}, most_bytes=1) == [{}]
