"""Teaches the toy model of `make demo-toy` with every algorithm, and writes what it learns into docs/algorithms.md.

make recipes                                                three seeds of every algorithm on the CPU: an hour
python benchmarks/bench_algorithms.py --types gspo --seeds 0     a part of it
python benchmarks/bench_algorithms.py --render              writes the table again

Runs that were made are kept, so the same command makes what is missing.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("crds", "trainer_image")]

from figures import write_between  # noqa: E402
from lorarl_trainer.progress import METRICS, read_rows  # noqa: E402
from toy import JOB, Run, kept_runs, lorarl_run, make_base, mean_by_step, options  # noqa: E402

RAW = ROOT / "benchmarks/results/algorithms.json"
DOCUMENT = ROOT / "docs/algorithms.md"
BEGIN, END = "<!-- figures: written by benchmarks/bench_algorithms.py -->", "<!-- end of the figures -->"
LEAST_GAIN = 0.2
"""What an algorithm must gain in held-out accuracy."""
LEAST_EXPLAINED = 0.5
"""What a critic must explain of the returns' variance, in its best step."""

TWO = "algorithm.updatesPerStep=2"
EXPLAINED = "critic/explained_variance"
HELD_OUT = "answers"
"""Name of the evaluation of a job that learns without rollouts: of completions too."""
PAIRS = (
    "algorithm.groupSize=null",
    "reward=null",
    "data.train={uri: 'file:out/addition/pairs.jsonl'}",
    "data.eval={uri: 'file:out/addition/held_out_pairs.jsonl', every: 10}",
    f"data.evals=[{{name: {HELD_OUT}, uri: 'file:out/addition/held_out.jsonl', every: 10, reward: {{type: exact}}}}]",
)
TEACHER_JOB, TEACHER = (
    ROOT / "examples/sft-cpu.yaml",
    ROOT / "out/sft/checkpoints/addition-sft/iter_0000100/lora_adapter",
)
TAUGHT = (
    "reward=null",
    "data.eval=null",
    f"data.evals=[{{name: {HELD_OUT}, uri: 'file:out/addition/held_out.jsonl', every: 10, reward: {{type: exact}}}}]",
    f"algorithm.distillation={{adapter: 'file:{TEACHER.relative_to(ROOT)}'}}",
)
RECIPES: Mapping[str, Sequence[str]] = {
    "grpo": (),
    "dr_grpo": (),
    "rloo": (),
    "reinforce": (),
    "reinforce_plus_plus": (),
    "reinforce_plus_plus_baseline": (),
    "maxrl": (),
    "dapo": (TWO, "algorithm.dapo.overlongBufferTokens=1"),
    "gspo": (TWO,),
    "cispo": (TWO,),
    "sapo": (TWO,),
    "ppo": (
        "algorithm.updatesPerStep=8",
        "algorithm.ppo={criticLearningRate: 1.0e-3, criticWarmupSteps: 8}",
        "trainer.learningRate=1.0e-4",
    ),
    "distillation": TAUGHT,
    "dpo": (*PAIRS, "rollout.promptsPerStep=128", "algorithm.dpo.beta=3.0"),
}
"""What each algorithm's job has besides its type. Losses differ in the second update of a step."""


def main() -> None:
    parser = options(__doc__, RAW)
    parser.add_argument("--types", nargs="+", default=list(RECIPES), choices=RECIPES)
    chosen = parser.parse_args()
    runs = kept_runs(chosen, [{"type": kind, "seed": seed} for seed in chosen.seeds for kind in chosen.types], train)
    write_between(DOCUMENT, BEGIN, END, lambda: table(runs))
    if weak := [run for run in runs if gain(run) < LEAST_GAIN]:
        sys.exit(f"less than {LEAST_GAIN:+.0%}: {[(run['type'], run['seed']) for run in weak]}")
    if blind := [run for run in runs if run.get("explained", 1.0) < LEAST_EXPLAINED]:
        sys.exit(
            f"critics that explain less than {LEAST_EXPLAINED:.0%}: {[(run['type'], run['seed']) for run in blind]}"
        )


def train(kind: str, seed: int) -> Run:
    """Train once; return the held-out accuracy by step, and the most that a critic explains."""
    make_base()
    if kind == "distillation" and not TEACHER.exists():
        lorarl_run(TEACHER_JOB)
    with tempfile.TemporaryDirectory(prefix="lorarl-algorithms-") as folder:
        changes = [
            f"metadata.name={kind.replace('_', '-')}",
            f"spec.checkpoint.uri=file:{folder}/checkpoints",
            f"spec.trainer.seed={seed}",
            f"spec.algorithm.type={kind}",
            *(f"spec.{change}" for change in RECIPES[kind]),
        ]
        lorarl_run(JOB, "--out", f"{folder}/run", changes=changes)
        rows = read_rows(Path(folder) / "run" / METRICS)
    scores = {str(row["step"]): score for row in rows if (score := held_out_score(row)) is not None}
    explained = [row[EXPLAINED] for row in rows if EXPLAINED in row]
    of_critic = {"explained": max(explained)} if explained else {}
    return {"type": kind, "seed": seed, "changes": list(RECIPES[kind]), "right": scores, **of_critic}


def held_out_score(row: Mapping[str, Any]) -> float | None:
    """Return the share of right completions of the held-out prompts; None of a step without an evaluation."""
    found = row.get(f"eval_{HELD_OUT}/score", row.get("eval_score"))
    return None if found is None else float(found)


def gain(run: Run) -> float:
    """Return how much the held-out accuracy rose from the first to the last step."""
    scores = list(run["right"].values())
    return float(scores[-1] - scores[0])


def table(runs: Sequence[Run]) -> str:
    """Return the table: means over the seeds, and the range after the last step."""
    steps = list(runs[0]["right"])
    lines = [
        f"| type | besides | seeds | {' | '.join(f'step {step}' for step in steps)} | gain, points |",
        "|---|---|---" + "|---" * len(steps) + "|---|",
    ]
    for kind, changes in RECIPES.items():
        if not (found := [run for run in runs if run["type"] == kind]):
            continue
        gains = [gain(run) for run in found]
        spread = f"{100 * statistics.fmean(gains):+.1f} ({100 * min(gains):+.1f} to {100 * max(gains):+.1f})"
        besides = ", ".join(
            f"`{change.removeprefix('algorithm.')}`" for change in changes if change not in (*PAIRS, *TAUGHT)
        )
        besides = f"pairs, {besides}" if set(PAIRS[:1]) & set(changes) else besides
        lines.append(f"| `{kind}` | {besides} | {len(found)} | {mean_by_step(found, steps)} | {spread} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
