"""What a notebook shows of a run, while it trains and later."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lorarl_trainer.errors import InputError
from lorarl_trainer.progress import METRICS, SUMMARY, read_rows, read_summary
from lorarl_trainer.progress.metrics_file import REPORT
from lorarl_trainer.progress.plots import curves, has_values, outcome, to_png, to_svg
from lorarl_trainer.progress.runs import run_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINES, WARNINGS = 6, 3
"""How many of the newest lines of output, and of the newest warnings, a notebook shows."""
_LEAST_SECONDS = 2.0
"""Between two pictures: each takes some tenths of a second of a core that trains."""


@dataclass(frozen=True)
class Plot:
    """Curves. A notebook shows them."""

    draw: Callable[[], Figure]

    def save(self, path: str | Path) -> None:
        """Write a PNG, or an SVG if that is the path's ending."""
        path = Path(path)
        path.write_bytes(to_svg(self.draw) if path.suffix == ".svg" else to_png(self.draw))

    def _repr_png_(self) -> bytes:
        return to_png(self.draw)


def plot(folder: Path, columns: Sequence[str]) -> Plot:
    """Return curves of a run.

    Raises:
        InputError: a column has no numbers in metrics.jsonl.
    """
    rows, summary = read_rows(folder / METRICS), read_summary(folder, ["algorithm", "job"])
    if not columns:
        return Plot(lambda: outcome(rows, summary["algorithm"], title=summary["job"]))
    for column in columns:
        if not has_values(rows, column):
            known = sorted({name for row in rows for name in row if isinstance(row[name], int | float)})
            raise InputError("plot", column, f"columns of metrics: {', '.join(known)}", "Name one of these.")
    return Plot(lambda: curves(rows, columns, title=summary["job"]))


def html(folder: Path, state: str, lines: Sequence[str] = ()) -> str:
    """Return how a run stands: state, step, the newest figure, warnings, and its curve.

    `lines`: the newest of its output.
    """
    began = state != "starting" and (folder / SUMMARY).exists()
    summary = read_summary(folder, ["algorithm", "job"]) if began else {}
    parts = [f"<b>{escape(str(summary.get('job', folder.name)))}</b>: {state}"]
    if began:
        line = run_line(folder)
        parts.append(f'<progress value="{line.step}" max="{line.total_steps}"></progress>')
        parts.append(f"step {line.step} of {line.total_steps}" + (f", {escape(line.score)}" if line.score else ""))
    if began and (folder / REPORT).exists():
        parts.append(f"report {escape(str(folder / REPORT))}")
    warnings = [f"<div>warning: {escape(text)}</div>" for text in summary.get("warnings", [])[-WARNINGS:]]
    rows = read_rows(folder / METRICS) if began else []
    curve = to_svg(lambda: outcome(rows, summary["algorithm"])).decode() if rows else ""
    tail = f"<pre>{escape(chr(10).join(lines))}</pre>" if lines else ""
    return f"<div>{' &nbsp; '.join(parts)}{''.join(warnings)}{curve[curve.find('<svg') :]}{tail}</div>"


def watcher(folder: Path, state: Callable[[], str]) -> Callable[[str], None]:
    """Return what takes the output of a run that trains, several times a second."""
    return Live(folder, state, notebook_display(html(folder, state()))) if in_notebook() else _printed


def _printed(text: str) -> None:
    print(text, end="", flush=True)


class Live:
    """Shows a run again whenever it has printed something, and at its end."""

    def __init__(self, folder: Path, state: Callable[[], str], update: Callable[[str], None]) -> None:
        """`update` takes the HTML."""
        self._folder, self._state, self._update = folder, state, update
        self._lines: list[str] = []
        self._not_before, self._new = 0.0, True

    def __call__(self, text: str) -> None:
        """Take new output."""
        self._new = self._new or bool(text)
        self._lines = [*self._lines, *text.splitlines()][-LINES:]
        state = self._state()
        ended = state not in ("starting", "running")
        if ended or (self._new and time.monotonic() >= self._not_before):
            self._update(html(self._folder, state, () if ended else self._lines))
            self._not_before, self._new = time.monotonic() + _LEAST_SECONDS, False


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def notebook_display(first: str) -> Callable[[str], None]:
    """Show HTML below a notebook's cell; return what replaces it by other HTML."""
    from IPython.display import HTML, display

    handle = display(HTML(first), display_id=True)
    return lambda text: handle.update(HTML(text))
