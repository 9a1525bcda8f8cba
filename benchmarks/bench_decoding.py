"""Times the rollout's decoding attention on one GPU beside flash attention 3: one layer of 7B's shape.

python benchmarks/bench_decoding.py [--out FILE]

Each case is a decode step of many sequences, whose blocks lie anywhere in the cache; eight share the blocks of their
prompt. "floor" is the time that reading keys and values takes at 4.3 TB/s, which a copy reaches on an H200. "off" is
how far the numbers are from flash attention's, by norm. Times are in microseconds, over several layers in one graph.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("crds", "trainer_image")]

from generation.products import in_graph  # noqa: E402
from lorarl_trainer.engine.vllm.patches.attention_kernel import attend_to_cache  # noqa: E402

SIZE, BLOCK, EACH = 128, 16, 7
SCALE = SIZE**-0.5
CACHE_BYTES, BYTES_PER_SECOND = 6 << 30, 4.3e12
PROMPT_BLOCKS, GROUP = 4, 8
SPLITS = 32  # what vLLM allows in graphs
MOST_LAYERS = 8
CASES = [
    ("equal", 512, 4, 192, 320),
    ("equal", 512, 4, 320, 320),
    ("equal", 512, 2, 192, 320),
    ("equal", 128, 4, 192, 320),
    ("geometric", 512, 4, 656, 4_352),
    ("geometric", 256, 4, 656, 4_352),
    ("geometric", 128, 4, 656, 4_352),
    ("geometric", 256, 4, 2_048, 16_640),
]
"""Lengths, sequences, key-value heads, mean tokens of a response (equal: of all), and the longest that may come."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    found = [{"gpu": torch.cuda.get_device_name()}, *(measure(*case) for case in CASES)]
    if options.out:
        options.out.write_text("".join(json.dumps(one) + "\n" for one in found))


def measure(kind: str, sequences: int, groups: int, mean: int, most: int) -> dict[str, Any]:
    """Return the times of one case; print them."""
    stream = np.random.default_rng(0)
    drawn = 256 + np.minimum(stream.geometric(1 / mean, sequences), most - 256)
    lengths = np.full(sequences, mean) if kind == "equal" else drawn
    cache = torch.randn(CACHE_BYTES // (4 * BLOCK * groups * SIZE), BLOCK, groups, 2 * SIZE, device="cuda").bfloat16()
    tables = tables_of(lengths, most, len(cache), stream)
    query = torch.randn(sequences, groups * EACH, SIZE, device="cuda", dtype=torch.bfloat16)
    counts = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    theirs, ours = torch.empty_like(query), torch.empty_like(query)
    keys, values = cache.split(SIZE, -1)
    flash = flash_calls(query, keys, values, tables, counts, most, theirs)

    def own(table: torch.Tensor) -> Callable[[], None]:
        return lambda: attend_to_cache(query, keys, values, table, counts, most, SCALE, ours)

    calls = [own(table) for table in tables]
    flash[0]()
    calls[0]()
    off = float((ours.float() - theirs.float()).norm() / theirs.float().norm())
    result = {
        "case": f"{kind} {mean} of {most}",
        "sequences": sequences,
        "key_heads": groups,
        "floor": round(int(lengths.sum()) * groups * SIZE * 4 / BYTES_PER_SECOND * 1e6, 1),
        "flash": round(microseconds(flash), 1),
        "ours": round(microseconds(calls), 1),
        "off": round(off, 6),
    }
    print(json.dumps(result), flush=True)
    return result


def tables_of(lengths: np.ndarray, most: int, blocks: int, stream: np.random.Generator) -> list[torch.Tensor]:
    """Return the blocks of each sequence, once for each layer that the cache has room for."""
    needed = -(-lengths // BLOCK)
    tables = []
    for _ in range(max(2, min(MOST_LAYERS, blocks // int(needed.sum())))):
        table, free = np.zeros((len(lengths), -(-most // BLOCK)), np.int32), stream.permutation(blocks)
        for row, (count, end) in enumerate(zip(needed, needed.cumsum(), strict=True)):
            table[row, :count] = free[end - count : end]
            table[row, :PROMPT_BLOCKS] = table[row - row % GROUP, :PROMPT_BLOCKS]
        tables.append(torch.tensor(table, device="cuda"))
    return tables


def flash_calls(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: Sequence[torch.Tensor],
    counts: torch.Tensor,
    most: int,
    out: torch.Tensor,
) -> list[Callable[[], object]]:
    """Return calls of flash attention 3 as vLLM makes them in a graph of decoding."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata

    ends = torch.arange(len(query) + 1, dtype=torch.int32, device="cuda")
    common = {"cu_seqlens_q": ends, "max_seqlen_q": 1, "max_seqlen_k": most, "causal": True, "num_splits": SPLITS}
    schedule = get_scheduler_metadata(
        batch_size=len(query),
        num_heads_q=query.shape[1],
        num_heads_kv=keys.shape[2],
        headdim=SIZE,
        cache_seqlens=counts,
        qkv_dtype=query.dtype,
        page_size=BLOCK,
        window_size=[-1, -1],
        **common,
    )
    rest = {"softmax_scale": SCALE, "window_size": [-1, -1], "scheduler_metadata": schedule, "fa_version": 3, **common}

    def call(table: torch.Tensor) -> Callable[[], object]:
        return lambda: flash_attn_varlen_func(
            q=query, k=keys, v=values, out=out, seqused_k=counts, block_table=table, **rest
        )

    return [call(table) for table in tables]


def microseconds(calls: Sequence[Callable[[], object]]) -> float:
    """Return the time of a call, with all of them in one graph."""

    def all_of_them() -> None:
        for call in calls:
            call()

    return in_graph(all_of_them) / len(calls) * 1e3


if __name__ == "__main__":
    main()
