"""Measures how full an engine is kept on one GPU: our scheduler, vLLM's own, and that of another version of lorarl.

python benchmarks/bench_scheduler.py --size 7b                      256 samples of 2,000 tokens on average: 6 minutes
python benchmarks/bench_scheduler.py --size 7b --kv-cache-gb 7      the same with room for some two thirds of them
python benchmarks/bench_scheduler.py --size 7b --schedulers ours vllm --groups 64 --prompt 20000 --tokens 128
                                                                    512 completions of prompts longer than a step
python benchmarks/bench_scheduler.py --size 7b --schedulers ours other --tree ../before
                                                                    also that of another working tree

The weights are random, so each token is nearly as likely as any other. So many of them end a completion that it has
`--mean` tokens on average. Each scheduler runs in its own process. The table has the samples that it generates at
a time, the same while others wait, its preemptions, and tokens/s. `--out` gets the same as JSON, a line for each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from side_by_side.work import SHAPES

ROOT = Path(__file__).parents[1]
SCHEDULERS = ("ours", "vllm", "other")
COLUMNS = (
    ("scheduler", "scheduler", ""),
    ("steps", "steps", ",.0f"),
    ("running", "at a time", ".1f"),
    ("running_while_waiting", "while others wait", ".1f"),
    ("kv_cache", "KV cache in use", ".0%"),
    ("preemptions", "preemptions", ",.0f"),
    ("seconds", "seconds", ".1f"),
    ("ms_a_step", "ms a step", ".2f"),
    ("tokens_per_s", "tokens/s", ",.0f"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SHAPES), required=True)
    parser.add_argument("--schedulers", nargs="+", choices=SCHEDULERS, default=SCHEDULERS[:2])
    parser.add_argument("--tree", type=Path, help="the working tree of `other`")
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--tokens", type=int, default=16_384, help="of the longest completion")
    parser.add_argument("--mean", type=int, default=2000, help="tokens of a completion on average, without that limit")
    parser.add_argument("--kv-cache-gb", type=float, default=60, help="at most, in GB")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if "other" in options.schedulers and options.tree is None:
        parser.error("--schedulers other needs --tree, a working tree of another version")
    rows = [measured(scheduler, options) for scheduler in options.schedulers]
    print("\n" + table(rows))
    if options.out:
        with options.out.open("a") as file:
            file.writelines(json.dumps({"size": options.size} | row) + "\n" for row in rows)


def measured(scheduler: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one scheduler in its own process."""
    tree = options.tree.resolve() if scheduler == "other" else ROOT
    paths = [tree / "crds", tree / "trainer_image", ROOT / "benchmarks"]
    given = {name: value for name, value in vars(options).items() if name not in ("schedulers", "tree", "out")}
    with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
        wanted = json.dumps(given | {"scheduler": scheduler, "answer": answer.name})
        command = [sys.executable, "-m", "generation.filling", wanted]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))})
        row: dict[str, Any] = json.load(answer)
    return row


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write a line per scheduler."""
    lines = [[title for _, title, _ in COLUMNS]]
    lines += [[format(row[name], form) for name, _, form in COLUMNS] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


if __name__ == "__main__":
    main()
