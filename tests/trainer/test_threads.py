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


FEW_TOKENS = """
import hashlib, torch
from lorarl_trainer.engine.vllm.patches.linear import add_adapter
stream = torch.Generator().manual_seed(0)
for rank, inputs, outputs in ((8, 64, 64), (16, 128, 384)):
    a, b = (torch.randn(shape, generator=stream) for shape in ((rank, inputs), (outputs, rank)))
    for tokens in range(1, 40):
        x, output = (torch.randn(shape, generator=stream) for shape in ((tokens, inputs), (tokens, outputs)))
        expected = output + x @ a.t() @ b.t()
        found = add_adapter(output, x, a, b)
        assert torch.allclose(found, expected, atol=1e-3)
        print(hashlib.sha256(found.contiguous().numpy().tobytes()).hexdigest())
print(torch.get_num_threads())
"""


BASE = """
import hashlib, torch
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from lorarl_trainer.engine.vllm.patches.cpu_linear import cpu_linear
stream = torch.Generator().manual_seed(0)
for inputs, outputs in ((384, 128), (128, 32), (576, 960)):
    layer = torch.nn.Linear(inputs, outputs, bias=False)
    layer.weight.data = torch.randn((outputs, inputs), generator=stream)
    with cpu_linear():
        dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
    for tokens in range(1, 41):
        x = torch.randn((tokens, inputs), generator=stream)
        found = layer.cpu_linear(x, layer.weight, None)
        assert torch.allclose(found, x @ layer.weight.data.t(), atol=1e-3)
        print("product", hashlib.sha256(found.detach().contiguous().numpy().tobytes()).hexdigest())
print("threads", torch.get_num_threads())
"""


def printed(script: str, threads: int) -> list[str]:
    environment = {**os.environ, **CpuDevice().environment(threads)}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


def test_long_sums_do_not_depend_on_the_number_of_threads() -> None:
    one, two = printed(PRODUCTS, 1), printed(PRODUCTS, 2)
    assert (one.pop(), two.pop()) == ("1", "2")
    assert one == two and len(one) == 6


def test_few_tokens_with_an_adapter_do_not_depend_on_the_number_of_threads() -> None:
    one, two = printed(FEW_TOKENS, 1), printed(FEW_TOKENS, 2)
    assert (one.pop(), two.pop()) == ("1", "2")
    assert one == two and len(one) == 78


def test_the_base_models_products_do_not_depend_on_the_number_of_threads() -> None:
    """vLLM's own do: some of one token, and without AVX-512 many of 25 to 40."""
    one, two = ([word for word in printed(BASE, threads) if len(word) in (1, 64)] for threads in (1, 2))
    assert (one.pop(), two.pop()) == ("1", "2")
    assert one == two and len(one) == 120
