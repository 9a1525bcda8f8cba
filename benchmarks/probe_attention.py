# ruff: noqa
"""Which attention kernels take packings with shared prompts: right (against fp32, segment by segment) and how fast. On one GPU:

PYTHONPATH=crds:trainer_image python benchmarks/probe_attention.py
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lorarl_trainer.batch import Sample
from lorarl_trainer.megatron_lora.packed import Rows, Segments, _attend_by_segment, _attend_flash
from lorarl_trainer.packing import pack

DEVICE = torch.device("cuda")


def packing(groups: int, completions: int, prompt: int, response: int, jitter: bool) -> tuple[Segments, int]:
    stream = np.random.default_rng(0)
    samples = []
    for _ in range(groups):
        start = stream.integers(0, 1000, prompt - int(stream.integers(0, prompt // 2)) * jitter)
        for _ in range(completions):
            end = stream.integers(0, 1000, response - int(stream.integers(0, response - 1)) * jitter)
            samples.append(Sample(np.concatenate([start, end]), len(start)))
    row = pack(samples, 16)
    return Segments.of(row, DEVICE), len(row.tokens)


def te_attention(heads: int, groups: int, size: int) -> Callable[..., torch.Tensor]:
    import transformer_engine.pytorch as te

    module = te.DotProductAttention(
        num_attention_heads=heads,
        kv_channels=size,
        num_gqa_groups=groups,
        attention_dropout=0.0,
        qkv_format="thd",
        attn_mask_type="padding_causal_bottom_right",
        softmax_scale=size**-0.5,
    )

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments, scale: float) -> torch.Tensor:
        return module(
            q,
            k,
            v,
            qkv_format="thd",
            attn_mask_type="padding_causal_bottom_right",
            cu_seqlens_q=segments.query_ends,
            cu_seqlens_kv=segments.key_ends,
            max_seqlen_q=segments.longest_query,
            max_seqlen_kv=segments.longest_key,
        ).view_as(q)

    return attend


def varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: Segments, scale: float) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn(q, k, v, s.query_ends, s.key_ends, s.longest_query, s.longest_key, scale=scale, window_size=(-1, 0))


def timed(function: Callable[[], Any], repeats: int = 20) -> float:
    for _ in range(3):
        function()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        function()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats


def inputs(rows: int, segments: Segments, heads: int, groups: int, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(rows, heads, size), (rows, groups, size), (rows, groups, size)]
    return [torch.randn(shape, device=DEVICE).to(torch.bfloat16).to(dtype).requires_grad_() for shape in shapes]


def forward(attend: Callable[..., torch.Tensor], tensors: list[torch.Tensor], segments: Segments) -> torch.Tensor:
    query, key, value = tensors
    return attend(query, segments.keys(key), segments.keys(value), segments, query.shape[-1] ** -0.5)


def main() -> None:
    print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version(), os.environ.get("NVTE_FUSED_ATTN"))
    for heads, groups, size in ((14, 2, 64), (28, 4, 128)):
        small, rows = packing(5, 4, 40, 90, jitter=True)
        reference = inputs(rows, small, heads, groups, size, torch.float32)
        wanted = forward(_attend_by_segment, reference, small)
        weights = torch.randn_like(wanted)
        (wanted * weights).sum().backward()
        big, big_rows = packing(8, 8, 64, 256, jitter=False)
        for name, make in (
            ("flash", lambda: _attend_flash),
            ("varlen_attn", lambda: varlen),
            ("te", lambda: te_attention(heads, groups, size)),
        ):
            try:
                attend = make()
                tensors = inputs(rows, small, heads, groups, size, torch.bfloat16)
                got = forward(attend, tensors, small)
                (got * weights.bfloat16()).sum().backward()
                errors = [
                    ((a.float() - b).abs().max() / b.abs().max()).item()
                    for a, b in zip([got, *(t.grad for t in tensors)], [wanted, *(t.grad for t in reference)])
                ]
                tensors = inputs(big_rows, big, heads, groups, size, torch.bfloat16)
                grad = torch.randn_like(tensors[0])
                only_forward = timed(lambda: forward(attend, tensors, big))
                both = timed(lambda: torch.autograd.grad(forward(attend, tensors, big), tensors, grad))
                k, v = (big.keys(t).detach().requires_grad_() for t in tensors[1:])
                kernel = timed(lambda: attend(tensors[0], k, v, big, size**-0.5))
                kernel_both = timed(lambda: torch.autograd.grad(attend(tensors[0], k, v, big, size**-0.5), [tensors[0], k, v], grad))
                print(
                    f"{heads}/{groups}x{size} {name}: relative errors out,dq,dk,dv {[f'{e:.4f}' for e in errors]}; {big_rows} tokens: "
                    f"forward {only_forward:.3f} ms, with backward {both:.3f} ms; without the gather {kernel:.3f}, {kernel_both:.3f} ms",
                    flush=True,
                )
            except Exception:
                print(f"{heads}/{groups}x{size} {name}: FAILED")
                traceback.print_exc()
    # One plain sequence a sample, for comparison: what sharing prompts costs the kernels.
    index = np.concatenate([np.arange(100), np.repeat(np.arange(50), 3)])
    rows_of = Rows(index, 100, DEVICE)
    matrix = torch.randn(100, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.randn(len(index), 64, device=DEVICE)
    (rows_of(matrix).float() * weights).sum().backward()
    wanted = torch.zeros(100, 64, device=DEVICE).index_add_(0, rows_of.index, weights.bfloat16().float())
    print("gather's gradient, largest relative error", ((matrix.grad.float() - wanted).abs() / wanted.abs().clamp(min=1e-3)).max().item())
    for shape in ((16384, 3584, 152064), (4096, 896, 151936)):
        h = torch.randn(shape[0] // 8, shape[1], device=DEVICE, dtype=torch.bfloat16)
        w = torch.randn(shape[2], shape[1], device=DEVICE, dtype=torch.bfloat16)
        seconds = timed(lambda: torch.mm(h, w.t(), out_dtype=torch.float32), 5) / 1e3
        plain = timed(lambda: torch.mm(h, w.t()), 5) / 1e3
        flops = 2 * h.shape[0] * h.shape[1] * w.shape[0]
        print(
            f"mm {tuple(h.shape)} x {tuple(w.shape)}: float32 out {flops / seconds / 1e12:.0f} TFLOP/s, bf16 out {flops / plain / 1e12:.0f}"
        )


if __name__ == "__main__":
    main()
