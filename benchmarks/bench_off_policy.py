"""Teaches the toy model on samples of adapters that are 0 to 4 versions old, and writes that into docs/algorithms.md.

python benchmarks/bench_off_policy.py               three seeds on the CPU: six minutes
python benchmarks/bench_off_policy.py --render      writes the table again

Runs that were made are kept, so the same command makes what is missing.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("crds", "trainer_image", "tests")]

from figures import write_between  # noqa: E402
from lorarl_trainer.devices.cpu import CpuDevice  # noqa: E402
from toy import OUT, Run, kept_runs, last_range, mean_by_step, options  # noqa: E402

RAW = ROOT / "benchmarks/results/off-policy.json"
DOCUMENT = ROOT / "docs/algorithms.md"
BEGIN, END = "<!-- off-policy: written by benchmarks/bench_off_policy.py -->", "<!-- end of off-policy -->"
BEHIND = (0, 1, 2, 4)
SETTINGS = ("spec.trainer.learningRate=1.0e-3",)
"""Twice the rate of `make demo-toy`, so that versions differ more."""
CORRECTION = "decoupled_token_is"


def main() -> None:
    chosen = options(__doc__, RAW).parse_args()
    os.environ.update(CpuDevice().environment(threads=min(2, len(os.sched_getaffinity(0)))))  # before torch
    runs = kept_runs(chosen, wanted(chosen.seeds), run_of)
    write_between(DOCUMENT, BEGIN, END, lambda: table(runs))


def wanted(seeds: Sequence[int]) -> list[Run]:
    """Return seed, versions behind, and whether it is corrected, of each run. On policy there is nothing to correct."""
    return [
        {"seed": seed, "behind": behind, "corrected": corrected}
        for seed in seeds
        for behind in BEHIND
        for corrected in (False, True)
        if behind or not corrected
    ]


def run_of(seed: int, behind: int, corrected: bool) -> Run:
    """Train once; return the held-out accuracy by step, and the metrics that say how far off the policy it was."""
    from support.addition import learn, make_addition

    correction = [f"spec.algorithm.correction={{preset: {CORRECTION}}}"] if corrected else []
    with tempfile.TemporaryDirectory(prefix="lorarl-off-policy-") as folder:
        addition = make_addition(OUT)
        learned = learn(addition, Path(folder), behind, *SETTINGS, f"spec.trainer.seed={seed}", *correction)
    names = ("rollout_kl", "correction/clipped_share", "correction/effective_share")
    means = {
        name: statistics.fmean(row[name] for row in learned.metrics) for name in names if name in learned.metrics[0]
    }
    right = {str(step): score for step, score in learned.scores.items()}
    return {"seed": seed, "behind": behind, "corrected": corrected, "right": right, **means}


def table(runs: Sequence[Run]) -> str:
    """Return the table: means over the seeds, and the range after the last step."""
    steps = list(runs[0]["right"])
    lines = [
        f"| versions behind | correction | seeds | {' | '.join(f'step {step}' for step in steps)} "
        "| after the last, range | `rollout_kl` | `correction/effective_share` |",
        "|---|---|---" + "|---" * len(steps) + "|---|---|---|",
    ]
    for behind in BEHIND:
        for corrected in (False, True):
            found = [run for run in runs if (run["behind"], run["corrected"]) == (behind, corrected)]
            if not found:
                continue
            kl = statistics.fmean(run["rollout_kl"] for run in found)
            effective = statistics.fmean(run["correction/effective_share"] for run in found) if corrected else None
            lines.append(
                f"| {behind} | {f'`{CORRECTION}`' if corrected else ''} | {len(found)} "
                f"| {mean_by_step(found, steps)} | {last_range(found, steps)} "
                f"| {kl:.4f} | {'' if effective is None else f'{effective:.3f}'} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
