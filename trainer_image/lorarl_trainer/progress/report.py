"""report.html and reward.png or loss.png, made from metrics.jsonl, samples.jsonl and run_summary.json alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lorarl_trainer.progress.console import collapse_layers
from lorarl_trainer.progress.events import PHASES
from lorarl_trainer.progress.metrics_file import METRICS, REPORT, Row, read_rows, read_summary, step_seconds
from lorarl_trainer.progress.page import page
from lorarl_trainer.progress.results import results
from lorarl_trainer.progress.samples import samples_by_step
from lorarl_trainer.progress.standing import state_in
from lorarl_trainer.progress.usage import download_commands, peft_snippet, vllm_command

MAX_POINTS = 4000
"""Longer series are averaged over equal shares, so that the report of 100,000 steps stays small."""
NO_CURVES = frozenset({"step", "total_steps", "adapter_version"})
"""Numbers of metrics.jsonl that are no metrics."""


def write_report(out_dir: Path) -> list[Path]:
    """Write `out_dir`/report.html, which needs no network, and reward.png (loss.png for sft, accuracy.png for dpo).

    Returns:
        The files that were written.

    Raises:
        FileNotFoundError: `out_dir` has no run_summary.json.
    """
    data = report_data(out_dir)
    report = out_dir / REPORT
    report.write_text(report_page(data), encoding="utf-8")
    if not data["steps"]:
        return [report]
    # Not at the top: importing matplotlib takes a second, which would delay the start of a run.
    from lorarl_trainer.progress import plots

    rows, algorithm = read_rows(out_dir / METRICS), data["summary"]["algorithm"]
    image = out_dir / f"{plots.OUTCOMES.get(algorithm, plots.REWARD)[0]}.png"
    image.write_bytes(plots.to_png(lambda: plots.outcome(rows, algorithm, title=data["summary"]["job"])))
    return [report, image]


def report_page(data: Mapping[str, Any], *, live: str = "", home: str = "") -> str:
    """Return the report as HTML. `live` and `home`: see `page`."""
    reached = [(label, value) for label, (value,) in results([data])]
    return page("report", data, title=data["summary"]["job"], live=live, home=home, run=data, results=reached)


_SHOWN = (
    *("job", "state", "base_model", "base_revision", "algorithm", "adapter", "adapter_uri", "total_steps"),
    *("warnings", "manifest"),
)
"""What the report needs of a summary."""


def report_data(out_dir: Path, *, samples: bool = True) -> dict[str, Any]:
    """Return what the report shows, as JSON values.

    `samples`: whether to read these too, which may be large.

    Raises:
        FileNotFoundError: `out_dir` has no run_summary.json.
        UnreadableSummaryError: it is not whole.
    """
    summary, rows = read_summary(out_dir, _SHOWN), read_rows(out_dir / METRICS)
    steps = [row for row in rows if "loss" in row]
    return {
        "summary": {"starts": [], "finished_at": None, "data": None, "reward": None, **summary},
        "state": state_in(out_dir),
        "folder": str(out_dir.resolve()),
        "step_count": len(steps),
        "last_step": steps[-1]["step"] if steps else 0,
        "train_seconds": sum(step_seconds(row) for row in steps),
        "phase_seconds": phase_seconds(steps),
        **curves(steps),
        "evaluations": evaluations(rows),
        "samples": samples_by_step(out_dir) if samples else {"training": [], "held_out": [], "left_out": []},
        "modules": collapse_layers(summary["adapter"]["modules"]),
        "snippets": snippets(summary),
    }


def curves(steps: Sequence[Row]) -> dict[str, Any]:
    """Return {"steps": [...], "columns": {name: [...]}, "phases": {name: [...]}} with null where there is no number.

    Of more than MAX_POINTS steps, each point is the mean of several.
    """
    numbers = {name for row in steps for name, value in row.items() if _is_number(value)}
    names = {name for name in numbers - NO_CURVES if not name.startswith("eval_")}
    size = math.ceil(len(steps) / MAX_POINTS)
    shares = [steps[at : at + size] for at in range(0, len(steps), size)] if steps else []
    return {
        "steps": [share[-1]["step"] for share in shares],
        "columns": {
            **{name: [_mean([row.get(name) for row in share]) for share in shares] for name in sorted(names)},
            "step_seconds": [_mean([step_seconds(row) for row in share]) for share in shares],
        },
        "phases": {
            phase: [_mean([row["seconds"].get(phase, 0.0) for row in share]) for share in shares]
            for phase in phase_seconds(steps)
        },
    }


def evaluations(rows: Sequence[Row]) -> list[Row]:
    """Return the numbers of each evaluation by their names without `eval_`, with its step."""
    found = [
        {"step": row["step"], **{n.removeprefix("eval_"): v for n, v in row.items() if n.startswith("eval_")}}
        for row in rows
    ]
    numbers = [{name: value for name, value in row.items() if _is_number(value)} for row in found]
    return [row for row in numbers if len(row) > 1]


def phase_seconds(steps: Sequence[Row]) -> dict[str, float]:
    """Return the seconds of all steps by phase, without phases that took no time."""
    totals = {phase: sum(row["seconds"].get(phase, 0.0) for row in steps) for phase in PHASES}
    return {phase: seconds for phase, seconds in totals.items() if seconds > 0}


def snippets(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how to load the adapter, as (title, code); an empty list if none was published."""
    if summary["adapter_uri"] is None:
        return []
    return [
        *(("Download", command) for command in download_commands(summary)),
        ("Transformers and PEFT", peft_snippet(summary)),
        ("vLLM", vllm_command(summary)),
        ("Adapter", summary["adapter_uri"]),
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(f"{sum(there) / len(there):.6g}") if there else None
