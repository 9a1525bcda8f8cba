"""Runs `make demo` and `make demo-toy` with either trainer backend, and writes both into docs/recipes.md.

python benchmarks/bench_backends.py               on the CPU: half an hour
python benchmarks/bench_backends.py --render      writes the table again

Runs that were made are kept, so the same command makes what is missing.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from itertools import batched
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("crds", "trainer_image")]

from figures import write_between  # noqa: E402
from lorarl_trainer.progress import METRICS, read_rows  # noqa: E402
from toy import Run, kept_runs, options  # noqa: E402

RAW = ROOT / "benchmarks/results/backends.json"
DOCUMENT = ROOT / "docs/recipes.md"
BEGIN, END = "<!-- backends: written by benchmarks/bench_backends.py -->", "<!-- end of backends -->"
DEMOS = {"SmolLM2-135M-Instruct": ([], "demo"), "the toy": (["--toy"], "addition")}
"""By what is taught: arguments of scripts/demo.py, and its folder."""
BACKENDS = ("megatron", "fsdp")
STEPS_TOGETHER = 5


def main() -> None:
    wanted = [{"model": model, "backend": backend} for model in DEMOS for backend in BACKENDS]
    runs = kept_runs(options(__doc__, RAW).parse_args(), wanted, demo)
    write_between(DOCUMENT, BEGIN, END, lambda: table(runs))


def demo(model: str, backend: str) -> Run:
    """Run a demo."""
    arguments, name = DEMOS[model]
    subprocess.run([sys.executable, "scripts/demo.py", *arguments, "--backend", backend], check=True, cwd=ROOT)
    return figures_of(model, backend, ROOT / "out" / name)


def figures_of(model: str, backend: str, folder: Path) -> Run:
    """Return what a demo left in its folder. `rewards` are the means of some steps each, in their order."""
    summary = json.loads((folder / "summary.json").read_text())
    rewards = [row["reward_mean"] for row in read_rows(folder / "run" / METRICS) if "reward_mean" in row]
    return {
        "model": model,
        "backend": backend,
        "before": summary["accuracy_before"],
        "after": summary["accuracy_after"],
        "gigabytes": round(summary["peak_memory_bytes"] / 1e9, 2),
        "difference": summary["mean_abs_logprob_diff"],
        "rewards": [round(statistics.fmean(some), 4) for some in batched(rewards, STEPS_TOGETHER)],
    }


def table(runs: Sequence[Run]) -> str:
    """Return the table, a row for each run that was made."""
    most = max(len(run["rewards"]) for run in runs)
    spans = [f"{1 + first * STEPS_TOGETHER} to {(first + 1) * STEPS_TOGETHER}" for first in range(most)]
    rows = [
        ["model", "backend", "accuracy", *spans, "peak memory", "vLLM - trainer, nats"],
        ["---"] * (5 + most),
        *(
            [
                run["model"],
                f"`{run['backend']}`",
                f"{run['before']:.1%} -> {run['after']:.1%}",
                *(f"{reward:.3f}" for reward in run["rewards"]),
                *[""] * (most - len(run["rewards"])),
                f"{run['gigabytes']:.1f} GB",
                f"{run['difference']:.1e}",
            ]
            for run in runs
        ),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    main()
