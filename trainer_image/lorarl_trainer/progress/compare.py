"""`lorarl compare`: what differs between runs, in their settings and in their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lorarl_trainer.progress.page import page
from lorarl_trainer.progress.report import report_data
from lorarl_trainer.progress.results import ABSENT, Table, results
from lorarl_trainer.progress.settings import flat_settings

NOT_A_SETTING = frozenset({"metadata.name", "metadata.uid"})


def compare_runs(folders: Sequence[Path]) -> dict[str, Any]:
    """Return what the page of a comparison shows: the runs with their curves, and two tables.

    Raises:
        FileNotFoundError: a folder has no run_summary.json.
    """
    return comparison_of([report_data(folder, samples=False) for folder in folders], [str(each) for each in folders])


def comparison_of(reports: Sequence[Mapping[str, Any]], folders: Sequence[str]) -> dict[str, Any]:
    """Return the same of runs' reports. `folders`: where each run is; what differs in them becomes its name."""
    names = distinct_names(folders)
    runs = [{**report, "name": name} for report, name in zip(reports, names, strict=True)]
    for run in runs:
        del run["samples"], run["snippets"]
    return {"runs": runs, "settings": different_settings(runs), "results": results(runs)}


def compare_page(comparison: Mapping[str, Any], *, live: str = "", home: str = "") -> str:
    """Return the comparison as one HTML text with overlaid curves. `live` and `home`: see `page`."""
    names = [run["name"] for run in comparison["runs"]]
    tables = {"results": comparison["results"], "settings": comparison["settings"]}
    return page("compare", comparison, title=" against ".join(names), live=live, home=home, names=names, **tables)


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
