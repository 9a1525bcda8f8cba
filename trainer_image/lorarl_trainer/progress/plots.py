"""The plots of a run, drawn from the rows of metrics.jsonl. They need no display."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from lorarl_trainer.progress.events import PHASES
from lorarl_trainer.progress.records import Row

MAX_POINTS = 400
"""Longer series are averaged in bins. So the plot of 10,000 steps stays readable and its file small."""
FEW_STEPS = 40
"""Up to this number of steps, each step has its own marker and bar."""

PLOTTED = frozenset(
    {"reward_mean", "mean_abs_logprob_diff", "kl", "response_tokens_mean", "truncated_share"}
    | {"step", "total_steps", "adapter_version", "tokens", "tokens_per_second"}
    | {"eval_score", "eval_loss", "eval_rows", "eval_seconds"}
)
"""Columns of metrics.jsonl that have their own plot or need none."""

SIZE = (5.6, 3.0)
"""Width and height of a plot in inches. The report shows two side by side."""
BLUE, ORANGE, GREY, INK = "#2563eb", "#ea580c", "#94a3b8", "#334155"
PHASE_COLOURS = dict(
    zip(
        PHASES,
        ("#93c5fd", "#2563eb", "#7c3aed", "#5eead4", "#0d9488", "#84cc16", "#f59e0b", "#ef4444", "#ec4899", "#94a3b8"),
        strict=True,
    )
)
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
    """Plot whether the run worked: reward and held-out score; for sft, training and held-out loss."""
    trained, held_out, label = (
        ("loss", "eval_loss", "loss") if algorithm == "sft" else ("reward_mean", "eval_score", "reward")
    )
    figure, axes = _figure(label, title)
    _draw(axes, *column(rows, trained), BLUE, "training")
    if has_values(rows, held_out):
        name = "held out, greedy" if held_out == "eval_score" else "held out"
        _draw(axes, *column(rows, held_out), ORANGE, name, markers=True)
        axes.legend(loc="best")
    _note_if_empty(axes, [column(rows, trained), column(rows, held_out)])
    return figure


def divergence(rows: Sequence[Row]) -> Figure:
    """Plot KL to the base model, if measured, above the difference of vLLM's and the trainer's log-probabilities."""
    names = [("kl", "KL to the base model", BLUE)] if has_values(rows, "kl") else []
    names.append(("mean_abs_logprob_diff", "mean log-probability difference, vLLM vs. trainer", ORANGE))
    figure = Figure(figsize=SIZE, layout="constrained")
    for index, (name, label, colour) in enumerate(names):
        axes = figure.add_subplot(len(names), 1, index + 1)
        _style(axes, "nats")
        axes.set_title(label, loc="left", fontsize=8.5)
        steps, values = column(rows, name)
        _draw(axes, steps, values, colour, label)
        if _spans_decades(values):
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())  # labels between the decades would overlap
        else:
            _few_ticks(axes)
        if index < len(names) - 1:
            axes.set_xlabel("")
        _note_if_empty(axes, [(steps, values)])
    return figure


def response_length(rows: Sequence[Row]) -> Figure:
    """Plot the mean length of a completion, and on the right axis the share that was truncated."""
    figure, axes = _figure("tokens per completion")
    _draw(axes, *column(rows, "response_tokens_mean"), BLUE, "mean length")
    axes.set_ylim(bottom=0)
    if has_values(rows, "truncated_share"):
        right = axes.twinx()
        right.grid(visible=False)
        right.spines["right"].set_visible(True)
        right.set_ylabel("truncated, %")
        steps, share = column(rows, "truncated_share")
        _draw(right, steps, share * 100, ORANGE, "truncated")
        right.set_ylim(-2, 102)
        handles = axes.get_legend_handles_labels()[0] + right.get_legend_handles_labels()[0]
        figure.legend(handles=handles, loc="outside upper right", ncols=2)
    return figure


def unplotted_metrics(rows: Sequence[Row], algorithm: str) -> list[str]:
    """Return the names of the metrics that no other plot shows. A new metric needs no code here."""
    shown = PLOTTED | {"loss"} if algorithm == "sft" else PLOTTED
    names = {name: None for row in rows for name, value in row.items() if isinstance(value, int | float)}
    return [name for name in names if name not in shown]


def small_multiples(rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """Plot each metric on its own small axes, two side by side, as wide as two other plots."""
    columns = 2
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(2 * SIZE[0], 0.4 + 1.1 * lines), layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08))
    for index, name in enumerate(names):
        axes = figure.add_subplot(lines, columns, index + 1, sharex=figure.axes[0] if figure.axes else None)
        _style(axes, "")
        axes.set_title(name, loc="left", fontsize=8.5)
        steps, values = column(rows, name)
        _draw(axes, steps, values, BLUE, name, points=MAX_POINTS // 2)
        _few_ticks(axes)
        if len(levels := np.unique(values[np.isfinite(values)])) == 1:
            axes.set_yticks(levels)
        if index < len(names) - columns:
            axes.set_xlabel("")
            axes.tick_params(labelbottom=False)
    return figure


def phase_seconds(rows: Sequence[Row]) -> Figure:
    """Plot seconds per step by phase: one bar per step, or stacked areas of averages if there are many steps."""
    steps_only = [row for row in rows if "seconds" in row]
    steps = np.array([row["step"] for row in steps_only], dtype=float)
    used = [phase for phase in PHASES if any(row["seconds"].get(phase, 0.0) > 0 for row in steps_only)]
    seconds = {phase: np.array([row["seconds"].get(phase, 0.0) for row in steps_only], dtype=float) for phase in used}
    colours = [PHASE_COLOURS[phase] for phase in used]
    labels = [phase.replace("_", "/") for phase in used]
    figure, axes = _figure("seconds per step")
    if len(steps) <= FEW_STEPS:
        bottom = np.zeros(len(steps))
        for phase, colour, label in zip(used, colours, labels, strict=True):
            axes.bar(steps, seconds[phase], bottom=bottom, width=0.8, color=colour, label=label)
            bottom += seconds[phase]
        if len(steps) == 1:
            axes.set_xlim(steps[0] - 1, steps[0] + 1)
    else:
        bins = min(len(steps), MAX_POINTS // 2)
        x = binned(steps, steps, bins)[0]
        axes.stackplot(
            x,
            *(binned(steps, seconds[phase], bins)[1] for phase in used),
            colors=colours,
            labels=labels,
            linewidth=0,
            step="mid",
        )
        axes.margins(x=0)
    figure.legend(loc="outside upper right", ncols=4)
    return figure


def to_svg(draw: Callable[[], Figure]) -> bytes:
    """Draw a figure in the report's style. Return an SVG that is the same every time."""
    with matplotlib.rc_context(STYLE):
        buffer = io.BytesIO()
        draw().savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue()


def to_png(draw: Callable[[], Figure]) -> bytes:
    """Draw a figure in the report's style. Return a PNG on white."""
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


def _few_ticks(axes: Any) -> None:
    """Label few values of a low axis, and without a common factor above it, which would collide with the title."""
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


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


def _spans_decades(values: Array) -> bool:
    """Return whether a logarithmic axis shows more: all values are above zero, the largest over 30 times the least."""
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and bool(finite.min() > 0) and bool(finite.max() > 30 * finite.min())


def _note_if_empty(axes: Any, series: Sequence[tuple[Array, Array]]) -> None:
    if not any(np.isfinite(values).any() for _, values in series):
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no finite values", transform=axes.transAxes, ha="center", va="center", color=GREY)
