"""`lorarl compare`: what differs between runs, in their settings and in their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lorarl_trainer.progress.page import page
from lorarl_trainer.progress.report import report_data
from lorarl_trainer.progress.settings import flat_settings
from lorarl_trainer.progress.start_bar import duration
from lorarl_trainer.samples.columns import COMPONENT

ABSENT = "–"
NOT_A_SETTING = frozenset({"metadata.name", "metadata.uid"})
LATEST = 10
"""The latest reward is the mean of so many steps, since a single step's is noisy."""

type Table = list[tuple[str, list[str]]]
"""A label, and a value for each run."""


def compare_runs(folders: Sequence[Path]) -> dict[str, Any]:
    """Return what the page of a comparison shows: the runs with their curves, and two tables.

    Raises:
        FileNotFoundError: a folder has no run_summary.json.
    """
    runs = [report_data(folder) for folder in folders]
    names = distinct_names([str(folder) for folder in folders])
    for run, name in zip(runs, names, strict=True):
        run["name"] = name
        del run["samples"], run["snippets"]
    return {"runs": runs, "settings": different_settings(runs), "results": results(runs)}


def compare_page(comparison: Mapping[str, Any]) -> str:
    """Return the comparison as one HTML text with overlaid curves."""
    return page("compare", comparison, title=" against ".join(run["name"] for run in comparison["runs"]))


def distinct_names(folders: Sequence[str]) -> list[str]:
    """Return the folders without the leading and trailing parts that all of them share."""
    parts = [Path(folder).parts for folder in folders]
    while all(len(p) > 1 for p in parts) and len({p[0] for p in parts}) == 1:
        parts = [p[1:] for p in parts]
    while all(len(p) > 1 for p in parts) and len({p[-1] for p in parts}) == 1:
        parts = [p[:-1] for p in parts]
    return [str(Path(*p)) for p in parts]


def different_settings(runs: Sequence[Mapping[str, Any]]) -> Table:
    """Return the manifests' fields that are not equal in all runs. A field that has no value is a dash."""
    manifests = flat_settings([run["summary"]["manifest"] for run in runs])
    fields = {name: None for manifest in manifests for name in manifest if name not in NOT_A_SETTING}
    rows = [(name, [str(manifest.get(name, ABSENT)) for manifest in manifests]) for name in fields]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


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
