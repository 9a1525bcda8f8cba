"""The trainer's Triton kernels against the same operations in PyTorch.

Without a GPU, `tests/trainer/test_kernels.py` runs them in Triton's interpreter, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from lorarl_trainer.engine.vllm import names
from lorarl_trainer.engine.vllm.patches import attention as vllm_attention
from lorarl_trainer.engine.vllm.patches import linear_kernel
from lorarl_trainer.engine.vllm.patches.attention_kernel import attend_to_cache, part_tokens
from lorarl_trainer.kernels import (
    attention,
    experts,
    fp8,
    logprobs,
    nf4,
    operations,
    row_sums,
    triton_experts,
    triton_fp8,
    triton_layer,
    triton_nf4,
    triton_rows,
    triton_softmax,
)
from lorarl_trainer.kernels.gather import Gather
from lorarl_trainer.kernels.heads import Heads
from lorarl_trainer.kernels.packed import Segments
from lorarl_trainer.lora.grouped_experts import Adapter, compute_mixture
from lorarl_trainer.samples.packing import pack
from support.tiny_models import VOCABULARY
from support.training import grouped_samples
from unit.trainer.engine.vllm.test_attention import FlashAttention, step

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PRECISIONS = [(torch.float32, 1e-5), *([(torch.bfloat16, 2e-2)] if DEVICE.type == "cuda" else [])]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def same(kernel: Callable[..., Any], plain: Callable[..., Any], *arguments: Any) -> None:
    """Run both in float32, the kernel on `DEVICE`, on copies (some write into an argument), and in bf16."""
    for dtype, tolerance in PRECISIONS:
        cast = [
            a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() and a.dim() > 1 else a
            for a in arguments
        ]
        expected = plain(
            *(a.float() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in _copies(cast, "cpu"))
        )
        found = kernel(*_copies(cast, DEVICE))
        for left, right in zip(_tuple(found), _tuple(expected), strict=True):
            torch.testing.assert_close(left.cpu().float(), right, rtol=tolerance, atol=tolerance)


def _copies(arguments: Any, device: Any) -> list[Any]:
    return [a.to(device, copy=True) if isinstance(a, torch.Tensor) else a for a in arguments]


def _tuple(values: Any) -> tuple[torch.Tensor, ...]:
    return values if isinstance(values, tuple) else (values,)


@pytest.mark.parametrize(
    ("tokens", "inputs", "outputs", "ranks"),
    [
        (1, 256, 64, 16),
        (3, 1032, 200, 24),
        (16, 4096, 192, 96),
        (17, 2048, 96, 1),
        (33, 1544, 130, 12),
        (64, 640, 64, 32),
    ],
)
@pytest.mark.parametrize("biased", [False, True])
def test_linear_layers_of_few_tokens(tokens: int, inputs: int, outputs: int, ranks: int, biased: bool) -> None:
    """With one program and several for each output, and sides that no tile divides."""
    x, bias = random(tokens, inputs), random(1, outputs) if biased else None
    weight, a = (random(rows, inputs) / inputs**0.5 for rows in (outputs, ranks))
    b = random(outputs, ranks) / ranks**0.5

    def kernel(x: torch.Tensor, weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: Any) -> torch.Tensor:
        arrived = linear_kernel.arrivals(a, b)
        made = [
            linear_kernel.adapted_product(x, weight, None if bias is None else bias[0], a, b, arrived) for _ in range(2)
        ]
        assert torch.equal(*made) and not arrived.any(), "counters are as before"
        return made[1]

    def plain(x: torch.Tensor, weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: Any) -> torch.Tensor:
        return linear(x, weight) + linear(linear(x, a), b, None if bias is None else bias[0])

    same(kernel, plain, x, weight, a, b, bias)


@pytest.mark.parametrize(("rows", "columns"), [(5, 896), (3, 3584), (2, 100)])
def test_norms(rows: int, columns: int) -> None:
    torch.manual_seed(0)
    x, weight, by_y, by_residual = random(rows, columns), random(columns), random(rows, columns), random(rows, columns)
    same(triton_layer.rms_norm, operations.rms_norm, x, weight, 1e-6)
    inverse = operations.rms_norm(x, weight, 1e-6)[1]
    same(triton_layer.rms_norm_backward, operations.rms_norm_backward, by_y, by_residual, x, weight, inverse)


@pytest.mark.parametrize(("rows", "columns"), [(5, 4864), (3, 100)])
def test_swiglu(rows: int, columns: int) -> None:
    torch.manual_seed(0)
    gate_up, by_product = random(rows, 2 * columns), random(rows, columns)
    same(triton_layer.swiglu, operations.swiglu, gate_up)
    same(triton_layer.swiglu_backward, operations.swiglu_backward, gate_up, by_product)


@pytest.mark.parametrize(("sums", "places", "rows", "columns"), [(5, 8, 20, 2056), (7, 4, 15, 100), (3, 2, 0, 64)])
def test_sums_of_rows(sums: int, places: int, rows: int, columns: int) -> None:
    torch.manual_seed(0)
    x, weights = random(rows, columns), random(sums, places)
    order = torch.randperm(sums * places)[:rows]
    place = torch.full((sums * places,), row_sums.NOWHERE).index_copy(0, order, torch.arange(rows)).view(sums, places)
    for more in ((), (weights,)):
        same(triton_rows.sum_rows, row_sums.sum_rows, x, place, *more)


@pytest.mark.parametrize(("tokens", "active", "first", "count"), [(37, 3, 0, 8), (700, 4, 4, 4), (1, 2, 0, 8)])
def test_sorting_by_expert(tokens: int, active: int, first: int, count: int) -> None:
    torch.manual_seed(0)
    chosen = random(tokens, 8).topk(active).indices
    order, place, ends = experts.sort_by_expert(chosen, first, count)
    for kind in (torch.int64, torch.int16):
        found = triton_experts.sort_by_expert(chosen.to(DEVICE, kind), first, count)
        assert torch.equal(found[0][: ends[-1]].cpu(), order[: ends[-1]])
        assert torch.equal(found[1].cpu(), place) and torch.equal(found[2].cpu(), ends)


@pytest.mark.parametrize(("rows", "columns"), [(20, 768), (15, 100)])
def test_swiglu_of_rows_with_weights(rows: int, columns: int) -> None:
    """Some weights have no row."""
    torch.manual_seed(0)
    gate_up, by_result, weights = random(rows, 2 * columns), random(rows, columns) / columns**0.5, random(5, 8)
    order = torch.randperm(40)[:rows]
    backward = triton_experts.weighted_swiglu_backward, experts.weighted_swiglu_backward
    same(*backward, gate_up, by_result, order, weights)


@pytest.mark.parametrize("rank", [8, 24])
def test_products_that_are_added(rank: int) -> None:
    """Some experts have no rows, and some share a block with others. A matrix may be a transposed view."""
    torch.manual_seed(0)
    output, low, up, across = random(150, 200), random(150, rank), random(6, 200, rank), random(6, rank, 200)
    ends = torch.tensor([0, 70, 70, 71, 150, 150], dtype=torch.int32)
    same(triton_experts.add_product, experts.add_product, output, low, up, ends)
    same(triton_experts.add_product, experts.add_product, output, low, across.transpose(1, 2), ends)


@pytest.mark.parametrize(("tokens", "hidden", "inner", "rank"), [(20, 64, 32, 8), (100, 128, 96, 16), (1, 200, 72, 8)])
def test_mixtures_of_few_tokens(tokens: int, hidden: int, inner: int, rank: int) -> None:
    """Of a kernel's blocks, some are not full, and some experts have no token or more than one block."""
    torch.manual_seed(0)
    count, active = 8, 3
    gate_up, down = random(count, 2 * inner, hidden) / 8, random(count, hidden, inner) / 8
    first = Adapter(random(count, 2 * rank, hidden) / 8, random(count, 2 * inner, 2 * rank) / 8)
    second = Adapter(random(count, rank, inner) / 8, random(count, hidden, rank) / 8)
    x, (weights, chosen) = random(tokens, hidden), random(tokens, count).softmax(-1).topk(active)
    expected = compute_mixture(x, weights, chosen, gate_up, down, (first, second))
    there = [_copies(layer, DEVICE) for layer in ((gate_up, *first[:2]), (down, *second[:2]))]
    found = triton_experts.mix_few(*_copies((x, weights, chosen), DEVICE), *map(tuple, there))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("queries", "groups", "size"), [(7, 2, 64), (7, 4, 128), (1, 3, 96)])
@pytest.mark.parametrize("normed", [False, True])
def test_heads(queries: int, groups: int, size: int, normed: bool) -> None:
    torch.manual_seed(0)
    tokens, width = 11, (queries + 2) * size
    qkv, angle = random(tokens, groups * width), random(tokens, size // 2)
    angles, norm = (angle.cos(), angle.sin()), (1 + 0.1 * random(size), 1e-6) if normed else None
    rows = np.array([0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 5, 6, 7, 8, 9, 10])
    for heads, taken_rows in (
        (Heads(queries * groups, queries, 0, width, size), None),
        (Heads(groups, 1, queries * size, width, size), rows),
    ):
        results = []
        for device in (torch.device("cpu"), DEVICE):
            there = tuple(a.to(device) for a in angles), None if norm is None else (norm[0].to(device), norm[1])
            index = None if taken_rows is None else Gather(taken_rows, tokens, device)
            on = qkv.to(device)
            taken = operations.take_heads(on, heads, index, *there)
            torch.manual_seed(1)
            by_qkv, by_taken = torch.zeros_like(on), random(*taken.shape).to(device)
            operations.put_heads(by_taken, by_qkv, on, heads, index, *there)
            results.append((taken.cpu(), by_qkv.cpu()))
        torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [64, 96, 128])
def test_attention(size: int) -> None:
    """Flash attention in bf16 against the CPU's in float32, forward and backward, over prompts that are shared."""
    packing = pack(grouped_samples(VOCABULARY, prompts=8, longest=200), multiple=16)
    assert len(packing.keys) > len(packing.tokens), "some prompts are shared"
    torch.manual_seed(0)
    rows, keys = len(packing.tokens), len(packing.keys)
    query, key, value, by_output = (
        random(count, heads, size).bfloat16() for count, heads in ((rows, 8), (keys, 2), (keys, 2), (rows, 8))
    )
    results = []
    for device, dtype in ((torch.device("cpu"), torch.float32), (DEVICE, torch.bfloat16)):
        extents = Segments.of(packing, device).extents
        inputs = [tensor.to(device, dtype) for tensor in (query, key, value)]
        output, statistics = attention.attend(*inputs, extents, size**-0.5)
        gradients = attention.attend_backward(
            by_output.to(device, dtype), *inputs, output, statistics, extents, size**-0.5
        )
        results.append([output, *gradients])
    for exact, found in zip(*results, strict=True):
        assert ((found.cpu().float() - exact).norm() / exact.norm()).item() < 1e-2


def test_softmax() -> None:
    torch.manual_seed(0)
    logits, targets = 5 * random(6, 10_007), torch.tensor([0, 5, 10_006, -3, 10_007, 9_000])
    expected = logprobs.softmax_statistics(logits, targets, 1.25)
    found = triton_softmax.softmax_statistics(logits.to(DEVICE), targets.to(DEVICE), 1.25)
    torch.testing.assert_close(tuple(t.cpu() for t in found), expected, rtol=1e-5, atol=1e-5)
    gradient = triton_softmax.target_minus_softmax(
        logits.to(DEVICE), targets.to(DEVICE), found[0], found[1], 1.25, torch.float32
    )
    plain = logprobs.target_minus_softmax(logits, targets, expected[0], expected[1], 1.25, torch.float32)
    torch.testing.assert_close(gradient.cpu(), plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("most_tokens", "each"), [(512, 7), (1100, 1), (20_000, 4)])
def test_new_tokens_see_the_cache(most_tokens: int, each: int) -> None:
    """Sequences of all lengths, whose blocks lie anywhere: within a part, over several, at their ends, and empty."""
    torch.manual_seed(0)
    groups, size, block = 2, 64, 16
    part = part_tokens(most_tokens)
    lengths = [n for n in (1, 16, 17, 63, 64, 65, 300, part - 1, part, part + 1, 1100, 0) if n <= most_tokens]
    blocks = -(-most_tokens // block)
    tables = torch.randperm(len(lengths) * blocks).view(-1, blocks).int()
    cache = random(len(lengths) * blocks, block, groups, 2 * size)
    queries = random(len(lengths), each * groups, size)
    for dtype, tolerance in [(torch.float32, 1e-5)] if DEVICE.type == "cpu" else [(torch.bfloat16, 1e-2)]:
        cast, stored = queries.to(dtype), cache.to(dtype)
        found = torch.full_like(cast, float("nan"), device=DEVICE)
        keys, values = stored.to(DEVICE).split(size, -1)
        counts = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
        attend_to_cache(cast.to(DEVICE), keys, values, tables.to(DEVICE), counts, most_tokens, 0.2, found)
        for row, length in enumerate(lengths):
            own = stored[tables[row].long()].flatten(0, 1)[:length].float().repeat_interleave(each, 1)
            key, value = own.split(size, -1)
            weights = (0.2 * torch.einsum("ad,tad->at", cast[row].float(), key)).softmax(-1)
            expected = torch.einsum("at,tad->ad", weights, value)
            torch.testing.assert_close(found[row].cpu().float(), expected, rtol=tolerance, atol=tolerance)


def test_a_layer_decodes_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a cache as vLLM has it, and over all of a sequence, although the layer's group has a window."""
    torch.manual_seed(0)
    sequences, groups, size, block, length = 3, 2, 64, 16, 40
    monkeypatch.setattr(names.Attention, "FlashAttentionImpl", FlashAttention)
    monkeypatch.setattr(vllm_attention, "LEAST_TILES", sequences * groups)
    own = vllm_attention._attention_class.__wrapped__()(num_kv_heads=groups, head_size=size, scale=0.2)
    kind = torch.float32 if DEVICE.type == "cpu" else torch.bfloat16
    cache = random(9, groups, block, 2 * size).to(kind)
    tables = torch.randperm(9).view(3, 3).int()
    queries = random(sequences + 1, 2 * groups, size).to(kind)  # a graph's tensors may be longer than its batch
    found = torch.zeros_like(queries, device=DEVICE)
    lengths = torch.full((sequences,), length, dtype=torch.int32, device=DEVICE)
    seen = {"seq_lens": lengths, "block_table": tables.to(DEVICE), "max_seq_len": 48, "sliding_window": (7, 0)}
    metadata = step(num_actual_tokens=sequences, **seen)
    assert own.forward(None, queries.to(DEVICE), None, None, cache.to(DEVICE), metadata, found) is found
    for row in range(sequences):
        own_blocks = cache[tables[row].long()].transpose(0, 1).flatten(1, 2)[:, :length].float()
        key, value = own_blocks.repeat_interleave(2, 0).split(size, -1)
        weights = (0.2 * torch.einsum("ad,atd->at", queries[row].float(), key)).softmax(-1)
        expected = torch.einsum("at,atd->ad", weights, value)
        tolerance = 1e-5 if kind == torch.float32 else 1e-2
        torch.testing.assert_close(found[row].cpu().float(), expected, rtol=tolerance, atol=tolerance)
    assert not found[sequences:].any()


@pytest.mark.parametrize("inputs", [3584, 100])
def test_weights_of_fp8_codes_are_the_same_to_the_bit(inputs: int) -> None:
    """All 256 codes are among them."""
    _, scale = fp8.quantized(random(48, inputs))
    codes = torch.arange(48 * inputs).remainder(256).to(torch.uint8).view(48, inputs).view(fp8.CODES)
    for dtype, _ in PRECISIONS:
        found = triton_fp8.dequantized(codes.to(DEVICE), scale.to(DEVICE), dtype)
        expected = fp8.dequantized(codes, scale, dtype)
        torch.testing.assert_close(found.cpu(), expected, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("inputs", [3584, 100])
def test_weights_of_nf4_codes_are_the_same_to_the_bit(inputs: int) -> None:
    """To the bit on a GPU. The interpreter cuts off what a GPU rounds to bf16."""
    off = 0.0 if DEVICE.type == "cuda" else 2.0**-7
    tensors = nf4.quantized(random(48, inputs))
    for dtype, _ in PRECISIONS:
        found = triton_nf4.dequantized(*(tensor.to(DEVICE) for tensor in tensors), dtype)
        torch.testing.assert_close(found.cpu(), nf4.dequantized(*tensors, dtype), rtol=off, atol=0.0)
