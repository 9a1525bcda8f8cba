"""Copies between host and device."""

from __future__ import annotations

import pytest
import torch

from lorarl_trainer.devices.transfer import from_host, to_host


@pytest.mark.parametrize("stage_bytes", [1, 4, 28, 400, 4096])
def test_a_tensor_comes_whole_through_a_stage_of_any_size(stage_bytes: int) -> None:
    flat = torch.arange(100, dtype=torch.float32)
    there = to_host(flat, stage_bytes)
    assert torch.equal(there, flat)
    assert there.data_ptr() != flat.data_ptr()


@pytest.mark.parametrize("stage_bytes", [1, 4, 28, 400, 4096])
def test_tensors_go_one_after_the_other_through_a_stage_of_any_size(stage_bytes: int) -> None:
    shapes = [(3, 5), (0,), (7,), (2, 1, 4), (30,)]
    tensors = [torch.randn(shape) for shape in shapes]
    there = from_host(tensors, torch.device("cpu"), stage_bytes)
    assert torch.equal(there, torch.cat([tensor.flatten() for tensor in tensors]))
