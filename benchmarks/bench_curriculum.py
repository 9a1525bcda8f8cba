"""Teaches the toy model of `make demo-toy` with and without a curriculum, and writes that into docs/data.md.

python benchmarks/bench_curriculum.py               three seeds on the CPU: four minutes
python benchmarks/bench_curriculum.py --render      writes the table again

The training set is small, so that its rows come up again and the curriculum has pass rates to choose by.
Runs that were made are kept, so the same command makes what is missing.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("crds", "trainer_image")]

from figures import write_between  # noqa: E402
from lorarl_trainer.progress import METRICS, read_rows  # noqa: E402
from toy import (  # noqa: E402
    JOB,
    OUT,
    Run,
    kept_runs,
    last_range,
    lorarl_run,
    make_base,
    mean_by_step,
    options,
)

RAW = ROOT / "benchmarks/results/curriculum.json"
DOCUMENT = ROOT / "docs/data.md"
BEGIN, END = "<!-- curriculum: written by benchmarks/bench_curriculum.py -->", "<!-- end of curriculum -->"
ROWS = 256
"""Rows of the training set: eight steps are an epoch."""
CURRICULUM = "data.curriculum={passReward: 1.0, leastShare: 0.1}"
SETTINGS = ("trainer.steps=60", "trainer.learningRate=2.0e-4", "data.eval.every=15", "checkpoint.every=30")
MEANS = ("signal_share", "curriculum/skipped_share")


def main() -> None:
    chosen = options(__doc__, RAW).parse_args()
    wanted = [{"seed": seed, "curriculum": curriculum} for seed in chosen.seeds for curriculum in (False, True)]
    runs = kept_runs(chosen, wanted, train)
    write_between(DOCUMENT, BEGIN, END, lambda: table(runs))


def train(seed: int, curriculum: bool) -> Run:
    """Train once; return the held-out accuracy by step, and means of what the curriculum changes."""
    make_base()
    rows = (OUT / "train.jsonl").read_text().splitlines(keepends=True)
    with tempfile.TemporaryDirectory(prefix="lorarl-curriculum-") as folder:
        few = Path(folder, "train.jsonl")
        few.write_text("".join(random.Random(0).sample(rows, ROWS)))
        changes = [
            f"checkpoint.uri=file:{folder}/checkpoints",
            f"data.train.uri=file:{few}",
            f"trainer.seed={seed}",
            *SETTINGS,
            *([CURRICULUM] if curriculum else []),
        ]
        lorarl_run(JOB, "--out", f"{folder}/run", changes=[f"spec.{change}" for change in changes])
        found = read_rows(Path(folder) / "run" / METRICS)
    right = {str(row["step"]): row["eval_score"] for row in found if row.get("eval_score") is not None}
    means = {
        name: statistics.fmean(values) for name in MEANS if (values := [row[name] for row in found if name in row])
    }
    return {"seed": seed, "curriculum": curriculum, "right": right, **means}


def table(runs: Sequence[Run]) -> str:
    """Return the table: means over the seeds, and the range after the last step."""
    steps = list(runs[0]["right"])
    lines = [
        f"| curriculum | seeds | {' | '.join(f'step {step}' for step in steps)} | after the last, range "
        "| `signal_share` | `curriculum/skipped_share` |",
        "|---|---" + "|---" * len(steps) + "|---|---|---|",
    ]
    for curriculum in (False, True):
        found = [run for run in runs if run["curriculum"] == curriculum]
        if not found:
            continue
        signal, skipped = (mean_of(found, name) for name in MEANS)
        lines.append(
            f"| {'yes' if curriculum else 'no'} | {len(found)} | {mean_by_step(found, steps)} "
            f"| {last_range(found, steps)} | {signal} | {skipped} |"
        )
    return "\n".join(lines)


def mean_of(runs: Sequence[Run], name: str) -> str:
    """Return the mean of a metric over runs as a percentage; empty if they do not have it."""
    values = [run[name] for run in runs if name in run]
    return f"{statistics.fmean(values):.1%}" if values else ""


if __name__ == "__main__":
    main()
