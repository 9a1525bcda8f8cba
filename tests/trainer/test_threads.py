"""Products of a real model's sizes are the same with one thread and two, bit for bit. Tiny models have no long sums."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

from lorarl_trainer.devices.cpu import CpuDevice
from lorarl_trainer.engine.vllm.patches.linear import add_adapter

PRODUCTS = """
import hashlib, torch
stream = torch.Generator().manual_seed(0)
for rows, inner, columns in ((336, 49152, 576), (16, 1040, 576), (1040, 576, 3072)):
    left, right = (torch.randn(shape, generator=stream) for shape in ((rows, inner), (inner, columns)))
    for product in (left @ right, left @ right.t().contiguous().t()):
        print(hashlib.sha256(product.numpy().tobytes()).hexdigest())
print(torch.get_num_threads())
"""


def products(threads: int) -> list[str]:
    environment = {**os.environ, **CpuDevice().environment(threads)}
    command = [sys.executable, "-c", PRODUCTS]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


def test_long_sums_do_not_depend_on_the_number_of_threads() -> None:
    one, two = products(1), products(2)
    assert (one.pop(), two.pop()) == ("1", "2")
    assert one == two and len(one) == 6


def test_few_tokens_with_an_adapter_do_not_depend_on_the_number_of_threads() -> None:
    threads = torch.get_num_threads()
    stream = torch.Generator().manual_seed(0)
    for rank, inputs, outputs in ((8, 64, 64), (16, 128, 384)):
        a, b = (torch.randn(shape, generator=stream) for shape in ((rank, inputs), (outputs, rank)))
        for tokens in range(1, 40):
            x, output = (torch.randn(shape, generator=stream) for shape in ((tokens, inputs), (tokens, outputs)))
            found = []
            for count in (1, 2):
                torch.set_num_threads(count)
                found.append(add_adapter(output.clone(), x, a, b))
            torch.set_num_threads(threads)
            assert torch.equal(*found), (rank, tokens)
            assert torch.allclose(found[0], output + x @ a.t() @ b.t(), atol=1e-4)
