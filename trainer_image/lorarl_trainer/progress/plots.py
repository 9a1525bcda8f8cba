"""The plots of a run, drawn from the lines of metrics.jsonl. Nothing here needs a display."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .events import PHASES
from .records import Row

MOST_POINTS = 400
"""Longer series are averaged over bins, so that a run of 10,000 steps makes no larger file, and no blot."""
FEW_STEPS = 40
"""Up to so many steps every one has its marker, and its bar."""

PLOTTED = frozenset(
    {"reward_mean", "mean_abs_logprob_diff", "kl", "response_tokens_mean", "truncated_share"}
    | {"step", "total_steps", "adapter_version", "tokens", "tokens_per_second"}
    | {"eval_score", "eval_loss", "eval_rows", "eval_seconds"}
)
"""Columns of metrics.jsonl that have a plot of their own, or need none."""

SIZE = (5.6, 3.0)
"""Inches."""
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
    """Steps and values of the rows that have this column; NaN where it is null."""
    present = [(row["step"], row[name]) for row in rows if name in row]
    steps = np.array([step for step, _ in present], dtype=float)
    return steps, np.array([np.nan if value is None else value for _, value in present], dtype=float)


def has_values(rows: Sequence[Row], name: str) -> bool:
    """Whether the column has a number in any row."""
    return any(row.get(name) is not None for row in rows)


def binned(steps: Array, values: Array, bins: int) -> tuple[Array, Array, Array, Array]:
    """Mean step, mean, smallest and largest value of each of `bins` equal shares of the series; NaNs are left out."""
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
    """The figure that says whether the run worked: reward and held-out score, or for sft both losses."""
    trained, held_out, label = (
        ("loss", "eval_loss", "loss") if algorithm == "sft" else ("reward_mean", "eval_score", "reward")
    )
    figure, axes = _figure(label, title)
    _line(axes, *column(rows, trained), BLUE, "training")
    if has_values(rows, held_out):
        _line(
            axes,
            *column(rows, held_out),
            ORANGE,
            "held out, greedy" if held_out == "eval_score" else "held out",
            markers=True,
        )
        axes.legend(loc="best")
    _say_if_empty(axes, [column(rows, trained), column(rows, held_out)])
    return figure


def divergence(rows: Sequence[Row]) -> Figure:
    """KL to the base model, where it is measured, above the difference between vLLM's and the trainer's log-probabilities."""
    names = [("kl", "KL to the base model", BLUE)] if has_values(rows, "kl") else []
    names.append(("mean_abs_logprob_diff", "log-probabilities, vLLM against trainer", ORANGE))
    figure = Figure(figsize=SIZE, layout="constrained")
    for index, (name, label, colour) in enumerate(names):
        axes = figure.add_subplot(len(names), 1, index + 1)
        _prepare(axes, "nats")
        axes.set_title(label, loc="left", fontsize=8.5)
        steps, values = column(rows, name)
        _line(axes, steps, values, colour, label)
        if _spans_decades(values):
            axes.set_yscale("log")
        if index < len(names) - 1:
            axes.set_xlabel("")
        _say_if_empty(axes, [(steps, values)])
    return figure


def response_length(rows: Sequence[Row]) -> Figure:
    """Mean tokens of a completion, and on the right the share that ran into the limit."""
    figure, axes = _figure("tokens a completion")
    _line(axes, *column(rows, "response_tokens_mean"), BLUE, "mean length")
    axes.set_ylim(bottom=0)
    if has_values(rows, "truncated_share"):
        right = axes.twinx()
        right.grid(visible=False)
        right.spines["right"].set_visible(True)
        right.set_ylabel("cut off, %")
        steps, share = column(rows, "truncated_share")
        _line(right, steps, share * 100, ORANGE, "cut off")
        right.set_ylim(-2, 102)
        handles = axes.get_legend_handles_labels()[0] + right.get_legend_handles_labels()[0]
        figure.legend(handles=handles, loc="outside upper right", ncols=2)
    return figure


def others(rows: Sequence[Row]) -> list[str]:
    """Return the metrics that no other plot shows, by name: a new one needs no plot of its own."""
    names = {name: None for row in rows for name, value in row.items() if isinstance(value, int | float)}
    return [name for name in names if name not in PLOTTED and has_values(rows, name)]


def small_multiples(rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """One small plot per metric."""
    columns = 2
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(SIZE[0], 0.4 + 1.35 * lines), layout="constrained")
    for index, name in enumerate(names):
        axes = figure.add_subplot(lines, columns, index + 1)
        _prepare(axes, "")
        axes.set_title(name, loc="left", fontsize=8.5)
        _line(axes, *column(rows, name), BLUE, name)
        if index < len(names) - columns:
            axes.set_xlabel("")
    return figure


def phase_seconds(rows: Sequence[Row]) -> Figure:
    """Seconds a step by phase: a bar a step, or stacked areas of averages where there are many."""
    steps_only = [row for row in rows if "seconds" in row]
    steps = np.array([row["step"] for row in steps_only], dtype=float)
    used = [phase for phase in PHASES if any(row["seconds"].get(phase, 0.0) > 0 for row in steps_only)]
    seconds = {phase: np.array([row["seconds"].get(phase, 0.0) for row in steps_only], dtype=float) for phase in used}
    colours = [PHASE_COLOURS[phase] for phase in used]
    labels = [phase.replace("_", "/") for phase in used]
    figure, axes = _figure("seconds a step")
    if len(steps) <= FEW_STEPS:
        bottom = np.zeros(len(steps))
        for phase, colour, label in zip(used, colours, labels, strict=True):
            axes.bar(steps, seconds[phase], bottom=bottom, width=0.8, color=colour, label=label)
            bottom += seconds[phase]
        if len(steps) == 1:
            axes.set_xlim(steps[0] - 1, steps[0] + 1)
    else:
        bins = min(len(steps), MOST_POINTS // 2)
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
    """Draw in the report's style, as an SVG that is the same at every run."""
    with matplotlib.rc_context(STYLE):
        buffer = io.BytesIO()
        draw().savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue()


def to_png(draw: Callable[[], Figure]) -> bytes:
    """Draw in the report's style, as a PNG on white."""
    with matplotlib.rc_context(STYLE):
        buffer = io.BytesIO()
        draw().savefig(buffer, format="png", dpi=180, facecolor="white")
    return buffer.getvalue()


def _figure(y_label: str, title: str = "") -> tuple[Figure, Any]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    _prepare(axes, y_label)
    if title:
        axes.set_title(title, loc="left", fontweight="bold")
    return figure, axes


def _prepare(axes: Any, y_label: str) -> None:
    axes.set_xlabel("step")
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))


def _line(axes: Any, steps: Array, values: Array, colour: str, label: str, markers: bool = False) -> None:
    """A series; a long one as its mean within the band between its smallest and largest values."""
    if len(steps) > MOST_POINTS:
        x, mean, low, high = binned(steps, values, MOST_POINTS)
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
        axes.set_xlim(steps[0] - 1, steps[0] + 1)


def _spans_decades(values: Array) -> bool:
    """Whether a logarithmic axis shows more: every value above zero, the largest thirty times the smallest."""
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and bool(finite.min() > 0) and bool(finite.max() > 30 * finite.min())


def _say_if_empty(axes: Any, series: Sequence[tuple[Array, Array]]) -> None:
    if not any(np.isfinite(values).any() for _, values in series):
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no finite values", transform=axes.transAxes, ha="center", va="center", color=GREY)
