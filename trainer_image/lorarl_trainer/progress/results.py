"""What runs have reached, as a table: for a comparison, and for readers of a report without JavaScript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lorarl_trainer.progress.start_bar import duration
from lorarl_trainer.samples.columns import COMPONENT

ABSENT = "–"
LATEST = 10
"""The latest reward is the mean of so many steps, since a single step's is noisy."""

type Table = list[tuple[str, list[str]]]
"""A label, and a value for each run."""


def results(runs: Sequence[Mapping[str, Any]]) -> Table:
    """Return state, scores, time and speed of each run. A row that no run has a value for is left out."""
    columns = [_results_of(run) for run in runs]
    labels = {label: None for column in columns for label in column}
    return [(label, [column.get(label, ABSENT) for column in columns]) for label in labels]


def _results_of(run: Mapping[str, Any]) -> dict[str, str]:
    summary, columns = run["summary"], run["columns"]
    made = {"state": run["state"], "steps": f"{run['last_step']:,} of {summary['total_steps']:,}"}
    metrics = {name: None for row in run["evaluations"] for name in row if name.rpartition("/")[2] in ("score", "loss")}
    for metric in metrics:
        rows = [row for row in run["evaluations"] if metric in row]
        best = max if metric.endswith("score") else min
        label = f"held-out {metric.replace('/', ' ')}"
        made[f"{label}, first"] = _score(rows[0], metric)
        made[f"{label}, best"] = _score(best(rows, key=lambda row: float(row[metric])), metric)
        made[f"{label}, latest"] = _score(rows[-1], metric)
    for component in dict.fromkeys(name for row in run["evaluations"] for name in row if COMPONENT in name):
        rows = [row for row in run["evaluations"] if row.get(component) is not None]
        for when, row in zip(("first", "latest"), (*rows[:1], *rows[-1:]), strict=False):
            made[f"held-out {component.replace(COMPONENT, '').replace('/', ' ')}, {when}"] = _score(row, component)
    rewards = [value for value in columns.get("reward_mean", [])[-LATEST:] if value is not None]
    if rewards:
        made[f"reward, mean of the latest {LATEST} steps"] = f"{sum(rewards) / len(rewards):.3f}"
    made["training time"] = duration(run["train_seconds"])
    if tokens := columns.get("tokens"):
        made["tokens/s, all steps"] = f"{sum(tokens) / len(tokens) * run['step_count'] / run['train_seconds']:,.0f}"
    return made


def _score(row: Mapping[str, Any], metric: str) -> str:
    low, high = row.get(f"{metric}_low"), row.get(f"{metric}_high")
    interval = "" if low is None or high is None else f" ({low:.3f} to {high:.3f})"
    return f"{row[metric]:.3f}{interval} at step {row['step']}"
