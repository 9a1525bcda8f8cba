"""Writes the generated part of docs/recipes.md and its two pictures from the raw figures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from figures import write_between
from recipes.curves import Curve, alone, common_score, curve, drift, mean_start, mean_step, seconds_to
from recipes.ours import ALGORITHMS
from recipes.tasks import RECIPES

DOCUMENT = Path("docs/recipes.md")
BY_TIME, BY_STEP = Path("docs/images/recipes-time.svg"), Path("docs/images/recipes-steps.svg")
BEGIN, END = "<!-- figures: written by benchmarks/bench_recipes.py -->", "<!-- end of the figures -->"
OTHER_ALGORITHMS = {
    **{f"lorarl-{name}": name for name in ALGORITHMS},
    "trl-rloo": "rloo, by TRL",
    "trl-dpo": "dpo, by TRL",
}
TITLES = {
    "lorarl": "lorarl",
    "lorarl-fsdp": "lorarl, fsdp backend",
    "trl": "TRL",
    "trl-corrected": "TRL, its defaults",
    **OTHER_ALGORITHMS,
}
COLOURS = {"lorarl": "#2563eb", "lorarl-fsdp": "#0d9488", "trl": "#ea580c"}
COMPARED, BACKENDS = ("lorarl", "trl"), ("lorarl", "lorarl-fsdp")

type Run = Mapping[str, Any]
type Runs = dict[tuple[str, str], list[Run]]
"""By recipe and system."""


def render(root: Path, raw: Path) -> None:
    """Write the document and its pictures.

    Raises:
        ValueError: there are no figures, or the document has no place for them.
    """
    result = json.loads(raw.read_text())
    grouped = by_recipe(result["runs"])
    if not grouped:
        raise ValueError(f"{raw} has no runs")
    source = raw.resolve().relative_to(root)
    write_between(root / DOCUMENT, BEGIN, END, lambda: markdown(grouped, result["settings"], source))
    draw(grouped, root / BY_TIME, "seconds", "seconds of training, without the start")
    draw(grouped, root / BY_STEP, "steps", "step")


def by_recipe(runs: Sequence[Run]) -> Runs:
    """Sort runs by recipe and system, in the order in which the recipes are listed."""
    grouped: Runs = {}
    for name in RECIPES:
        for system in TITLES:
            if found := [run for run in runs if (run["recipe"], run["system"]) == (name, system)]:
                grouped[name, system] = found
    return grouped


def markdown(grouped: Runs, settings: Mapping[str, Any], source: Path) -> str:
    """Return the tables."""
    runs = [run for group in grouped.values() for run in group]
    dates, devices = sorted({run["date"][:10] for run in runs}), sorted({run["device"] for run in runs})
    every = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in settings.items())
    return "\n".join(
        [
            f"{', '.join(dates)}; {' and '.join(devices)}; {every}.",
            f"Raw figures, with the commands: [{source.name}]({Path('..') / source}).",
            "",
            "| recipe | seeds | base | lorarl | TRL | lorarl - TRL, points |",
            "|---|---|---|---|---|---|",
            *(score_row(name, grouped, COMPARED) for name in names(grouped)),
            "",
            "| recipe | score | seconds to it: lorarl | TRL | ratio | a step: lorarl | TRL | start: lorarl | TRL |",
            "|---|---|---|---|---|---|---|---|---|",
            *(time_row(name, grouped) for name in names(grouped)),
            "",
            "| recipe | system | difference of the log-probabilities, first step | last step |",
            "|---|---|---|---|",
            *drift_rows(grouped),
            "",
            *backend_rows(grouped),
            *algorithm_rows(grouped),
            f"![Held-out accuracy over time]({BY_TIME.relative_to('docs')})",
            "",
            f"![Held-out accuracy by step]({BY_STEP.relative_to('docs')})",
        ]
    )


def names(grouped: Runs) -> list[str]:
    """Return the recipes that were run."""
    return list(dict.fromkeys(name for name, _ in grouped))


def score_row(name: str, grouped: Runs, systems: Sequence[str]) -> str:
    """Return a recipe's accuracies: the mean over the seeds that both systems ran, and their range."""
    runs = {system: grouped[name, system] for system in systems if (name, system) in grouped}
    common = set.intersection(*({run["seed"] for run in group} for group in runs.values()))
    compared = len(runs) == len(systems) and bool(common)
    if compared:
        runs = {system: [run for run in group if run["seed"] in common] for system, group in runs.items()}
    curves = {system: curve(group) for system, group in runs.items()}
    seeds = ", ".join(str(seed) for seed in sorted({run["seed"] for group in runs.values() for run in group}))
    ends = [spread(curves[system]) if system in curves else "not run" for system in systems]
    apart = f"{100 * (curves[systems[0]].final - curves[systems[1]].final):+.1f}" if compared else ""
    base = next(iter(curves.values())).base
    return f"| {RECIPES[name].title} | {seeds} | {base:.1%} | {' | '.join(ends)} | {apart} |"


def backend_rows(grouped: Runs) -> list[str]:
    """Return a table of the recipes that both backends ran, or nothing."""
    shared = [name for name in names(grouped) if all((name, system) in grouped for system in BACKENDS)]
    if not shared:
        return []
    head = ["| recipe | seeds | base | Megatron | fsdp | Megatron - fsdp, points |", "|---|---|---|---|---|---|"]
    return [*head, *(score_row(name, grouped, BACKENDS) for name in shared), ""]


def algorithm_rows(grouped: Runs) -> list[str]:
    """Return a table of what other algorithms than GRPO reach, step by step, or nothing."""
    recipes = [name for name in names(grouped) if any((name, system) in grouped for system in OTHER_ALGORITHMS)]
    rows = []
    for recipe in recipes:
        for system, name in {"lorarl": "grpo", **OTHER_ALGORITHMS}.items():
            if runs := grouped.get((recipe, system)):
                of = curve(runs)
                seeds = ", ".join(map(str, sorted({run["seed"] for run in runs})))
                rows.append(
                    f"| {RECIPES[recipe].title} | {name} | {seeds} | {' | '.join(map('{:.1%}'.format, of.right))} |"
                )
    if not rows:
        return []
    steps = next(iter(grouped.values()))[0]["held_out"]
    head = f"| recipe | algorithm | seeds | base | {' | '.join(f'step {found["step"]}' for found in steps[1:])} |"
    return [head, "|---" * (3 + len(steps)) + "|", *rows, ""]


def spread(of: Curve) -> str:
    """Return the final accuracy and its range over the seeds."""
    return f"{of.final:.1%} ({100 * of.least[-1]:.1f} to {100 * of.most[-1]:.1f})"


def time_row(name: str, grouped: Runs) -> str:
    """Return a recipe's times to a score that both systems reach."""
    runs = [grouped.get((name, system), []) for system in COMPARED]
    if not all(alone(group) for group in runs):
        return f"| {RECIPES[name].title} | not compared | | | | | | | |"
    curves = [curve(group) for group in runs]
    score = common_score(*curves)
    times = [seconds_to(one, score) for one in curves]
    shown = ["never" if time is None else f"{time:.1f}" for time in times]
    ratio = f"{times[0] / times[1]:.2f}" if times[0] is not None and times[1] else ""
    steps = [f"{mean_step(alone(group)):.2f} s" for group in runs]
    starts = [f"{mean_start(alone(group)):.0f} s" for group in runs]
    return f"| {RECIPES[name].title} | {score:.1%} | {' | '.join([*shown, ratio, *steps, *starts])} |"


def drift_rows(grouped: Runs) -> list[str]:
    """Return how far the engines differ, of the systems that report it."""
    return [
        f"| {RECIPES[name].title} | {TITLES[system]} | {found[0]:.1e} | {found[1]:.1e} |"
        for (name, system), runs in grouped.items()
        if (found := drift(runs)) is not None
    ]


def draw(grouped: Runs, path: Path, axis: str, label: str) -> None:
    """Draw each recipe's curves: the mean over the seeds, and their range as a band."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    shown = names(grouped)
    columns = min(3, len(shown))
    height = math.ceil(len(shown) / columns)
    style = {"svg.hashsalt": "lorarl", "axes.spines.top": False, "axes.spines.right": False, "font.size": 9}
    with mpl.rc_context(style):
        figure = Figure((3.2 * columns, 2.5 * height), layout="constrained")
        grid = figure.subplots(height, columns, squeeze=False)
        drawn: set[str] = set()
        for place, name in zip(grid.flat, shown, strict=False):
            for system in COLOURS:
                if (name, system) in grouped:
                    of = curve(grouped[name, system])
                    across = getattr(of, axis)
                    if not across:  # no run had a GPU to itself
                        continue
                    drawn.add(system)
                    place.plot(across, [100 * v for v in of.right], "o-", ms=3, color=COLOURS[system])
                    low, high = [100 * v for v in of.least], [100 * v for v in of.most]
                    place.fill_between(across, low, high, color=COLOURS[system], alpha=0.15, lw=0)
            place.set_title(RECIPES[name].title, fontsize=9)
            place.set_ylim(0, 100)
            place.set_xlim(left=0)
            place.grid(color="#e2e8f0")
        for place in list(grid.flat)[len(shown) :]:
            place.set_visible(False)
        legend = [system for system in COLOURS if system in drawn]
        lines = [mpl.lines.Line2D([], [], color=COLOURS[system], marker="o", ms=3) for system in legend]
        titles = [TITLES[system] for system in legend]
        figure.legend(lines, titles, loc="outside upper right", ncols=len(legend), frameon=False)
        figure.supxlabel(label, fontsize=9)
        figure.supylabel("held-out accuracy, %", fontsize=9)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})
