"""Products of a real model's sizes are the same with one thread and two, bit for bit. Tiny models have no long sums."""

from __future__ import annotations

import os
import subprocess
import sys

from lorarl_trainer.devices.cpu import CpuDevice

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
