"""The table of both demos with either backend."""

from __future__ import annotations

import json
from pathlib import Path

from bench_backends import figures_of, table

SUMMARY = {"accuracy_before": 0.25, "accuracy_after": 0.5, "peak_memory_bytes": 4.5e9, "mean_abs_logprob_diff": 2e-6}


def test_a_run_s_rewards_are_in_groups_of_five_steps(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    (tmp_path / "run").mkdir()
    rows = [{"step": 0, "eval_score": 0.1}, *({"step": step, "reward_mean": step / 10} for step in range(1, 8))]
    (tmp_path / "run/metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run = figures_of("a model", "fsdp", tmp_path)
    assert run["rewards"] == [0.3, 0.65]
    short = {**run, "backend": "megatron", "rewards": [0.3]}
    assert table([short, run]).splitlines()[0].startswith("| model | backend | accuracy | 1 to 5 | 6 to 10 |")
    assert table([short, run]).splitlines()[2:] == [
        "| a model | `megatron` | 25.0% -> 50.0% | 0.300 |  | 4.5 GB | 2.0e-06 |",
        "| a model | `fsdp` | 25.0% -> 50.0% | 0.300 | 0.650 | 4.5 GB | 2.0e-06 |",
    ]
