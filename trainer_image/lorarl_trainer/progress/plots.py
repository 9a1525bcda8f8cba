"""reward.png: one picture of a run, drawn from the rows of metrics.jsonl. It needs no display."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lorarl_trainer.progress.metrics_file import Row

MAX_POINTS = 400
"""Longer series are averaged in bins. So the plot of 10,000 steps stays readable and its file small."""
FEW_STEPS = 40
"""Up to this number of steps, each step has its own marker."""

SIZE = (5.6, 3.0)
"""Width and height of a plot in inches."""
BLUE, ORANGE, GREY, INK = "#2563eb", "#ea580c", "#94a3b8", "#334155"
STYLE = {
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e2e8f0",
    "font.size": 9,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.hashsalt": "lorarl",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}

type Array = np.ndarray[Any, np.dtype[np.float64]]


def column(rows: Sequence[Row], name: str) -> tuple[Array, Array]:
    """Return the steps and values of the rows that have this column, with NaN for null."""
    present = [(row["step"], row[name]) for row in rows if name in row]
    steps = np.array([step for step, _ in present], dtype=float)
    return steps, np.array([np.nan if value is None else value for _, value in present], dtype=float)


def has_values(rows: Sequence[Row], name: str) -> bool:
    """Return whether any row has a number in this column."""
    return any(row.get(name) is not None for row in rows)


REWARD = ("reward", "reward_mean", "eval_score")
OUTCOMES = {
    "sft": ("loss", "loss", "eval_loss"),
    "dpo": ("accuracy", "preference/accuracy", "eval_score"),
    "distillation": ("teacher_kl", "teacher/kl", ""),
}
"""What says whether a run worked, and its columns in training and held out, by algorithm; `REWARD` for the others."""


def binned(steps: Array, values: Array, bins: int) -> tuple[Array, Array, Array, Array]:
    """Split a series into `bins` equal shares; return the mean step and the mean, least and largest value of each.

    Values that are not finite are left out.
    """
    groups = [group for group in np.array_split(np.arange(len(steps)), bins) if len(group)]
    finite = [values[group][np.isfinite(values[group])] for group in groups]
    nan = np.nan
    return (
        np.array([steps[group].mean() for group in groups]),
        np.array([part.mean() if len(part) else nan for part in finite]),
        np.array([part.min() if len(part) else nan for part in finite]),
        np.array([part.max() if len(part) else nan for part in finite]),
    )


def outcome(rows: Sequence[Row], algorithm: str, title: str = "") -> Figure:
    """Plot whether the run worked: the column of `OUTCOMES` in training and held out, or else reward and score."""
    label, trained, held_out = OUTCOMES.get(algorithm, REWARD)
    figure, axes = _figure(label, title)
    _draw(axes, *column(rows, trained), BLUE, "training")
    if has_values(rows, held_out):
        name = "held out, greedy" if label == "reward" else "held out"
        _draw(axes, *column(rows, held_out), ORANGE, name, markers=True)
        axes.legend(loc="best")
    _note_if_empty(axes, [column(rows, trained), column(rows, held_out)])
    return figure


def curves(rows: Sequence[Row], columns: Sequence[str], title: str = "") -> Figure:
    """Plot columns over the steps, each with its own axis below the one before."""
    figure = Figure(figsize=(SIZE[0], SIZE[1] * len(columns)), layout="constrained")
    all_axes = figure.subplots(len(columns), 1, sharex=True, squeeze=False)[:, 0]
    for axes, name in zip(all_axes, columns, strict=True):
        _style(axes, name)
        _draw(axes, *column(rows, name), BLUE, name)
        _note_if_empty(axes, [column(rows, name)])
    if title:
        all_axes[0].set_title(title, loc="left", fontweight="bold")
    return figure


def to_svg(draw: Callable[[], Figure]) -> bytes:
    """Draw a figure in lorarl's style. Return an SVG that is the same every time."""
    with matplotlib.rc_context(STYLE):
        buffer = io.BytesIO()
        draw().savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue()


def to_png(draw: Callable[[], Figure]) -> bytes:
    """Draw a figure in lorarl's style. Return a PNG on white."""
    with matplotlib.rc_context(STYLE):
        buffer = io.BytesIO()
        draw().savefig(buffer, format="png", dpi=180, facecolor="white")
    return buffer.getvalue()


def _figure(y_label: str, title: str = "") -> tuple[Figure, Any]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    _style(axes, y_label)
    if title:
        axes.set_title(title, loc="left", fontweight="bold")
    return figure, axes


def _style(axes: Any, y_label: str) -> None:
    axes.set_xlabel("step")
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))


def _draw(
    axes: Any,
    steps: Array,
    values: Array,
    colour: str,
    label: str,
    markers: bool = False,
    points: int = MAX_POINTS,
) -> None:
    """Draw a series; if it is long, draw its mean in a band between its least and largest values."""
    if len(steps) > points:
        x, mean, low, high = binned(steps, values, points)
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(x, mean, color=colour, linewidth=1.2, label=label)
        return
    marked = len(steps) <= FEW_STEPS
    axes.plot(
        steps,
        values,
        color=colour,
        linewidth=1.5,
        marker="o" if marked else None,
        markersize=4 if markers else 3,
        label=label,
    )
    if len(steps) == 1:
        # A single point needs room beside it. This adds room; limits would cut off the other series of these axes.
        axes.update_datalim([(steps[0] - 1, 0), (steps[0] + 1, 0)], updatey=False)
        axes.autoscale_view()


def _note_if_empty(axes: Any, series: Sequence[tuple[Array, Array]]) -> None:
    if not any(np.isfinite(values).any() for _, values in series):
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no finite values", transform=axes.transAxes, ha="center", va="center", color=GREY)
