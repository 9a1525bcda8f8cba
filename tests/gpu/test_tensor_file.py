"""A checkpoint leaves the GPU at the speed of the bus, and is the file that the format's own library writes."""

from __future__ import annotations

import time

import torch
from safetensors.torch import save

from lorarl_trainer.lora.tensor_file import write_tensors

COUNT, ROWS, COLUMNS = 392, 192, 3584
"""1.08 GB: about the state of LoRA rank 32 on every linear layer of a 7B model."""


def test_tensors_leave_the_gpu_for_their_places_in_the_file() -> None:
    tensors = {f"layer.{number}": torch.randn(ROWS, COLUMNS, device="cuda") for number in range(COUNT)}
    torch.cuda.synchronize()
    seconds = {}
    for which in ("first", "second"):
        begin = time.perf_counter()
        file = write_tensors(tensors)
        seconds[which] = time.perf_counter() - begin
        begin = time.perf_counter()
        expected = save({name: tensor.cpu() for name, tensor in tensors.items()})
        seconds["the library's"] = time.perf_counter() - begin
        assert bytes(file) == expected
        del file  # its memory is the second one's
    floor = len(expected) / 50e9  # PCIe 5 with 16 lanes
    print({name: round(value, 3) for name, value in seconds.items()}, f"floor {floor:.3f} s")
    assert seconds["second"] < seconds["the library's"] / 3
