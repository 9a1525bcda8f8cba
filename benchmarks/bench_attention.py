"""Times the trainer's attention on one GPU beside cuDNN's, which Transformer Engine brings: one layer of 7B's shape.

python benchmarks/bench_attention.py [--out FILE]

Segments are those of micro-batches as they are trained: groups with a shared prompt, and the parts of two GPUs that
share the tokens of a long one. TFLOP/s count causal attention: 4 x heads x head size for each pair of query and key,
and 2.5 times as much backward. "off" is how far cuDNN's numbers are from the trainer's, by norm.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("crds", "trainer_image")]

from lorarl_trainer.kernels.attention import attend, attend_backward  # noqa: E402
from lorarl_trainer.kernels.packed import Segments  # noqa: E402
from lorarl_trainer.kernels.segments import Extents  # noqa: E402
from lorarl_trainer.samples.context import share_of  # noqa: E402
from lorarl_trainer.samples.packing import pack  # noqa: E402
from lorarl_trainer.samples.sample import Sample  # noqa: E402

HEADS, KEY_HEADS, SIZE = 28, 4, 128
SCALE = SIZE**-0.5
BACKWARD = 2.5
RAGGED = [656] * 14 + [4096, 2000]


def group(prompt_tokens: int, responses: Sequence[int]) -> list[Sample]:
    """Return the completions of one prompt."""
    prompt = np.zeros(prompt_tokens, np.int64)
    return [
        Sample(np.concatenate([prompt, np.zeros(length, np.int64)]), prompt_tokens, 1.0, np.zeros(length, np.float32))
        for length in responses
    ]


CASES: dict[str, tuple[list[Sample], int | None]] = {
    "7 x (64 + 8 x 256)": ([sample for number in range(7) for sample in group(64 + number, [256] * 8)], None),
    "2 x (256 + 16 ragged)": ([sample for number in range(2) for sample in group(256 + number, RAGGED)], None),
    "20,000 + 8 x 256": (group(20_000, [256] * 8), None),
    "127,000 + 4 x 1,000": (group(127_000, [1000] * 4), None),
    "127,000 + 4 x 1,000, first of 2 GPUs": (group(127_000, [1000] * 4), 0),
    "127,000 + 4 x 1,000, second of 2 GPUs": (group(127_000, [1000] * 4), 1),
}
"""Samples, and whose part of them is computed: a rank of two, or None for all."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="append the lines to this file")
    chosen = parser.parse_args()
    for name, (samples, rank) in CASES.items():
        line = json.dumps({"case": name, **measured(samples, rank)})
        print(line, flush=True)
        if chosen.out:
            with chosen.out.open("a") as file:
                file.write(f"{line}\n")


def measured(samples: Sequence[Sample], rank: int | None) -> dict[str, Any]:
    """Return the seconds of both, and their TFLOP/s."""
    whole = pack(samples, 2)
    packing = whole if rank is None else share_of(whole, rank, 2).packing
    device, tokens = torch.device("cuda"), len(packing.tokens)
    segments = Segments.of(packing, device, rows=len(whole.tokens))
    random = torch.Generator(device).manual_seed(0)

    def normal(rows: int, heads: int) -> torch.Tensor:
        return torch.randn(rows, heads, SIZE, device=device, dtype=torch.bfloat16, generator=random)

    query, by_output = normal(tokens, HEADS), normal(tokens, HEADS)
    key, value = (segments.keys.take(normal(len(whole.tokens), KEY_HEADS)) for _ in range(2))
    extents, teraflops = segments.extents, operations(packing.query_ends, packing.key_ends) / 1e12
    (output, statistics), forward = timed(lambda: attend(query, key, value, extents, SCALE))
    found, backward = timed(lambda: attend_backward(by_output, query, key, value, output, statistics, extents, SCALE))
    (its_output, its_statistics), its_forward = timed(lambda: cudnn(query, key, value, extents))
    its, its_backward = timed(lambda: cudnn_backward(by_output, query, key, value, its_output, its_statistics, extents))
    return {
        "seconds": [forward, backward],
        "tflops": [teraflops / forward, BACKWARD * teraflops / backward],
        "cudnn seconds": [its_forward, its_backward],
        "cudnn tflops": [teraflops / its_forward, BACKWARD * teraflops / its_backward],
        "off": [off(its_output, output), *map(off, its, found)],
    }


def operations(query_ends: np.ndarray, key_ends: np.ndarray) -> float:
    """Return the floating-point operations of causal attention over segments."""
    queries, keys = np.diff(query_ends).astype(float), np.diff(key_ends).astype(float)
    return float(4 * HEADS * SIZE * (queries * keys - queries * (queries - 1) / 2).sum())


def timed[Result](work: Callable[[], Result], times: int = 3) -> tuple[Result, float]:
    """Return what some work on the GPU returns, and its seconds after a first time."""
    work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        result = work()
    torch.cuda.synchronize()
    return result, (time.perf_counter() - began) / times


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.view(expected.shape) - expected).float().norm() / expected.float().norm())


def cudnn(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, extents: Extents) -> tuple[torch.Tensor, Any]:
    """Return cuDNN's output and what its backward pass needs."""
    from transformer_engine.pytorch.cpp_extensions import fused_attn

    backend = fused_attn.FusedAttnBackend.F16_arbitrary_seqlen
    output, statistics, *_ = fused_attn.fused_attn_fwd(
        True, *_lengths(extents), query, key, value, torch.bfloat16, backend, o_format="thd", **_options(extents)
    )
    return output, statistics


def cudnn_backward(
    by_output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    statistics: Any,
    extents: Extents,
) -> Sequence[torch.Tensor]:
    """Return the gradients by queries, keys and values."""
    from transformer_engine.pytorch.cpp_extensions import fused_attn

    gradients: Sequence[torch.Tensor] = fused_attn.fused_attn_bwd(
        *_lengths(extents),
        *(query, key, value, output, by_output),
        *(torch.bfloat16, statistics, fused_attn.FusedAttnBackend.F16_arbitrary_seqlen),
        o_format="thd",
        do_format="thd",
        dqkv_layout="thd_thd_thd",
        **_options(extents),
    )[:3]
    return gradients


def _lengths(extents: Extents) -> tuple[int, int, torch.Tensor, torch.Tensor]:
    # cuDNN makes a plan for each pair of greatest lengths. Powers of two keep them few.
    most = (1 << (longest - 1).bit_length() for longest in (extents.longest_query, extents.longest_key))
    return *most, extents.query_ends, extents.key_ends


def _options(extents: Extents) -> dict[str, Any]:
    return {
        "cu_seqlens_q_padded": extents.query_ends,
        "cu_seqlens_kv_padded": extents.key_ends,
        "qkv_layout": "thd_thd_thd",
        "attn_mask_type": "padding_causal_bottom_right",
        "window_size": (-1, 0),
        "bottom_right_diagonal": True,
        "attn_scale": SCALE,
    }


if __name__ == "__main__":
    main()
