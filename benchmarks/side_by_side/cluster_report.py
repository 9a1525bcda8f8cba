"""Makes the tables of docs/gpu-cluster.md from raw figures: a step bare and in pods, and the seconds of a start."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from figures import write_between
from side_by_side.report import TITLES
from side_by_side.start import overhead, within

BEGIN, END = "<!-- figures: written by benchmarks/bench_gpu_cluster.py -->", "<!-- end of the figures -->"
OVERHEAD, TOKEN_SECONDS = {"7b": 1.01}, {"0.5b": 60.0, "7b": 90.0}
LOST_TOKEN_SECONDS, LOST_SECONDS = 35.0, 50.0
LOSSES = {"lost": "deleted", "killed": "killed"}
"""What happened to a worker pod in these parts."""
SHORTEST = 0.05
"""Seconds that are shown as 0.1."""

type Run = Mapping[str, Any]


def find(runs: Sequence[Run], part: str, size: str, caches: str = "warm") -> Run | None:
    """Return that run, or None if it was not made."""
    return next((run for run in runs if (run["part"], run["size"], run["caches"]) == (part, size, caches)), None)


def targets(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Return the targets as (what, target, reached)."""
    found = []
    for size in sizes(runs):
        bare, pods = find(runs, "bare", size), find(runs, "pods", size)
        if bare and pods:
            ratio = overhead(bare["steps"], pods["steps"])
            seconds = f"{_mean(pods):.2f} s over {_mean(bare):.2f} s"
            target = OVERHEAD.get(size)
            verdict = _verdict(f"{ratio:.3f} ({seconds})", target is None or ratio <= target)
            found.append((f"a step in pods over the same bare, {title(size)}", f"{target or ''}", verdict))
        if pods and size in TOKEN_SECONDS:
            token = pods["first_token_seconds"]
            verdict = _verdict(f"{token:.0f} s", token <= TOKEN_SECONDS[size])
            found.append(
                (f"apply to the first token, {title(size)}, caches warm", f"{TOKEN_SECONDS[size]:.0f} s", verdict)
            )
        for part, how in LOSSES.items():
            if (lost := find(runs, part, size)) is None:
                continue
            after, token, seconds = f"a {how} worker pod, {title(size)}", lost["first_token_seconds"], lost["seconds"]
            verdict = _verdict(f"{token:.0f} s", token <= LOST_TOKEN_SECONDS)
            found.append((f"{after}, to the first token", f"{LOST_TOKEN_SECONDS:.0f} s", verdict))
            verdict = _verdict(
                f"{seconds:.0f} s, {lost['steps_lost']} lost", seconds <= LOST_SECONDS and not lost["steps_lost"]
            )
            found.append((f"{after}, to a step further than before", f"{LOST_SECONDS:.0f} s, 0 lost", verdict))
    return found


def start_rows(columns: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Return the parts of each run's start in order, with their own parts below them, in seconds to the first token.

    Parts without length are left out.
    """
    places: dict[str, int] = {}  # counted from the driver's start: the parts before differ
    for stages in (list(run["stages"]) for run in columns):
        for place, name in enumerate(stages, -stages.index("process") if "process" in stages else 0):
            places.setdefault(name, place)
    places.pop("other", None)
    rows = []
    for name in [*sorted(places, key=places.__getitem__), "other"]:
        if all(run["stages"].get(name, 0.0) < SHORTEST for run in columns):
            continue
        rows.append((name, [_seconds(run["stages"].get(name)) for run in columns]))
        inner = [within(run["startup"], name) for run in columns]
        rows += [
            (f"- {part}", [_seconds(one.get(part)) for one in inner])
            for part in dict.fromkeys(part for one in inner for part in one)
        ]
    rows.append(("**first token**", [f"**{run['first_token_seconds']:.1f}**" for run in columns]))
    return rows


def markdown(result: Mapping[str, Any], source: Path) -> str:
    """Return the generated part of docs/gpu-cluster.md."""
    runs, gpu = result["runs"], next((gpu["name"] for gpu in result["machine"]["gpus"]), "no GPU")
    columns = [
        run
        for run in sorted(runs, key=lambda run: (sizes(runs).index(run["size"]), run["part"]))
        if run["part"] not in LOSSES
    ]
    columns += [run for run in runs if run["part"] in LOSSES]
    heads = [f"{title(run['size'])} {_called(run)}" for run in columns]
    return "\n".join(
        [
            f"{result['date'][:10]}, {gpu}. Raw figures: [{source.name}]({Path('..') / source}).",
            "",
            "| | target | reached |",
            "|---|---|---|",
            *(f"| {what} | {target} | {reached} |" for what, target, reached in targets(runs)),
            "",
            "This table has the seconds to the first token, by part.",
            "They start at the command, at `kubectl apply`, or at a worker pod's deletion.",
            "Only time that was waited for counts, so the parts add up; a part's own parts are below it:",
            "",
            f"| | {' | '.join(heads)} |",
            f"|---|{'---|' * len(heads)}",
            *(f"| {name} | {' | '.join(values)} |" for name, values in start_rows(columns)),
        ]
    )


def render(result: Mapping[str, Any], document: Path, source: Path) -> None:
    """Write the generated part of the document.

    Raises:
        ValueError: the document has no place for it.
    """
    write_between(document, BEGIN, END, lambda: markdown(result, source))


def sizes(runs: Sequence[Run]) -> list[str]:
    """Return the sizes that were run, in order."""
    return list(dict.fromkeys(run["size"] for run in runs))


def title(size: str) -> str:
    """Return a size as people write it."""
    return TITLES.get(size, size)


def _called(run: Run) -> str:
    if run["part"] not in LOSSES:
        return f"{run['part']}, {run['caches']}"
    return f"after a worker was {LOSSES[run['part']]}, {run['date']}"


def _mean(run: Run) -> float:
    return statistics.fmean(step["seconds"] for step in run["steps"])


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _verdict(reached: str, met: bool) -> str:
    return reached if met else f"{reached} (missed)"
