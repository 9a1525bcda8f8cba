"""What the benchmarks on the toy model of `make demo-toy` share: options, its base, kept runs and cells of tables."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / "examples/addition-cpu.yaml"
OUT = ROOT / "out/addition"
"""The base model and its rows."""

type Run = Mapping[str, Any]
"""One training. `right` is the held-out accuracy by step."""


def options(what: str | None, raw: Path) -> argparse.ArgumentParser:
    """Return the options of a benchmark whose runs are kept in a file. `what` is its docstring."""
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--raw", type=Path, default=raw, help="figures, to which these are added")
    parser.add_argument("--render", action="store_true", help="only write the table")
    return parser


def kept_runs(chosen: argparse.Namespace, wanted: Iterable[Mapping[str, Any]], make: Callable[..., Run]) -> list[Run]:
    """Return the kept runs, after making those that are wanted and missing, unless only the table is.

    A run has what is wanted of it, whose values `make` takes in their order.
    """
    runs: list[Run] = read_figures(chosen.raw, [])
    for one in () if chosen.render else wanted:
        if not any(one.items() <= run.items() for run in runs):
            runs.append(make(*one.values()))
            write_figures(chosen.raw, runs)
    return runs


def make_base() -> None:
    """Make the base model and its rows, unless they are there."""
    subprocess.run([sys.executable, str(ROOT / "examples/addition/make_base.py"), "--out", str(OUT)], check=True)


def lorarl_run(job: Path, *arguments: str, changes: Sequence[str] = ()) -> None:
    """Run a job as a user does, with `changes` for `--set`."""
    settings = [part for change in changes for part in ("--set", change)]
    command = [sys.executable, "-m", "lorarl_trainer.cli", "run", str(job), *arguments, *settings]
    subprocess.run(command, check=True, cwd=ROOT)


def read_figures(raw: Path, empty: Any) -> Any:
    """Return the figures that are kept in a file, or `empty` where there is none."""
    return json.loads(raw.read_text()) if raw.exists() else empty


def write_figures(raw: Path, figures: Any) -> None:
    """Keep figures in a file, which always has all earlier ones or all of these: a benchmark may be killed any time."""
    raw.parent.mkdir(parents=True, exist_ok=True)
    new = raw.with_name(f"{raw.name}.new")
    new.write_text(json.dumps(figures, indent=1) + "\n")
    new.replace(raw)


def mean_by_step(runs: Sequence[Run], steps: Sequence[str]) -> str:
    """Return the cells of the mean accuracy after each of these steps."""
    return " | ".join(f"{statistics.fmean(run['right'][step] for run in runs):.1%}" for step in steps)


def last_range(runs: Sequence[Run], steps: Sequence[str]) -> str:
    """Return the cell of the lowest and the highest accuracy after the last step."""
    last = [run["right"][steps[-1]] for run in runs]
    return f"{min(last):.1%} to {max(last):.1%}"
