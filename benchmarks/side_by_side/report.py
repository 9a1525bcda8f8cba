"""Makes the table of docs/performance.md from raw figures: each with its lower bound, its target and the peer's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import write_between
from side_by_side.work import SHAPES, Work, attention_flops, generation_floor, train_flops

DOCUMENT, PLOT = Path("docs/performance.md"), Path("docs/images/gpu-step.svg")
BEGIN, END = "<!-- figures: written by benchmarks/bench_gpu.py -->", "<!-- end of the figures -->"
PHASES = ("generate", "reward", "old_logprobs", "forward_backward", "optimizer", "sync", "sleep", "wake", "other")
TITLES = {"0.5b": "0.5B", "7b": "7B"}

BANDWIDTH = 4.3e12
"""Bytes per second that a copy on an H200 reads and writes, as measured."""

type Run = Mapping[str, Any]
type Result = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        floor: the least that is possible, and how it is counted.
        target: what should be reached.
        reached: what was measured; None if that part was not run.
        met: whether the target was met; None if the peer was not measured.
    """

    what: str
    floor: str
    peer: str
    target: str
    reached: str | None
    met: bool | None


def mean(run: Run, name: str) -> float:
    """Return the mean of a figure over the measured steps; 0 if the system has no such phase."""
    return statistics.fmean(step.get(name) or 0.0 for step in run["steps"])


def train_seconds(run: Run) -> float:
    """Return the seconds of forward, backward and the optimizer's update, for which the flops are counted."""
    return mean(run, "forward_backward") + mean(run, "optimizer")


def mfu(result: Result, run: Run, *, attention: bool = False) -> float:
    """Return the share of the measured matrix-product speed that training reaches on all of the run's GPUs."""
    shape, work = SHAPES[run["size"]], Work(**run["work"])
    flops = train_flops(shape, work, mean(run, "response_tokens")) + attention * attention_flops(shape, work)
    return flops / train_seconds(run) / (result["matmul_tflops"] * 1e12 * run["gpus"])


def find(result: Result, system: str, size: str, gpus: int = 1, completions: int = 512) -> Run | None:
    """Return the fastest such run, or None."""
    runs = [r for r in result["runs"] if (r["system"], r["size"], r["gpus"]) == (system, size, gpus)]
    if system == "device":
        return runs[-1] if runs else None
    runs = [r for r in runs if r["completions"] == completions]
    return min(runs, key=lambda run: mean(run, "seconds")) if runs else None


def rows(result: Result) -> list[Row]:
    """Return the table of targets."""
    return [
        *(_sync(result, size, floor, target) for size, floor, target in (("0.5b", 0.17, 0.5), ("7b", 0.45, 1.0))),
        _step(result, "0.5b", 3.4, 2.5),
        _step(result, "7b", 14.0, 2.2),
        _base_copies(result),
        _switch(result),
        _mfu(result),
        *_two_gpus(result),
    ]


def _row(
    what: str, floor: str, peer: str, target: str, run: Run | None, reached: Callable[[Run], tuple[str, bool | None]]
) -> Row:
    if run is None:
        return Row(what, floor, peer, target, None, None)
    return Row(what, floor, peer, target, *reached(run))


def _sync(result: Result, size: str, floor: float, target: float) -> Row:
    device, peer = find(result, "device", size), find(result, "trl", size)
    measured = f"{device['sync_floor_ms']:.2f} ms" if device else f"{floor} ms"

    def reached(run: Run) -> tuple[str, bool]:
        return f"{run['sync_wall_ms']:.2f} ms ({run['sync_gpu_ms']:.2f} ms on the GPU)", run["sync_wall_ms"] <= target

    theirs = f"{mean(peer, 'sync') * 1000:.0f} ms" if peer else ""
    return _row(f"adapter sync, {TITLES[size]}", measured, theirs, f"{target} ms", device, reached)


def _step(result: Result, size: str, target: float, ratio: float) -> Row:
    peer, shape, peak = find(result, "trl", size), SHAPES[size], result["matmul_tflops"] * 1e12
    work = Work()
    generation = generation_floor(shape, work, peak, BANDWIDTH)
    training = train_flops(shape, work, work.completions * work.response_tokens) / peak
    floor = f"{generation:.1f} generation + {training:.1f} training"

    def reached(run: Run) -> tuple[str, bool | None]:
        seconds = mean(run, "seconds")
        if peer is None:
            return f"{seconds:.2f}", None
        faster = mean(peer, "seconds") / seconds
        return f"{seconds:.2f}, {faster:.1f}x", seconds <= target and faster >= ratio

    theirs = f"{mean(peer, 'seconds'):.2f}" if peer else ""
    return _row(
        f"seconds per step, {TITLES[size]}",
        floor,
        theirs,
        f"{target}, {ratio}x TRL",
        find(result, "lorarl", size),
        reached,
    )


def _base_copies(result: Result) -> Row:
    def reached(run: Run) -> tuple[str, bool]:
        return f"{run['base_copies']:.2f}", run["base_copies"] < 1.1

    return _row(
        "copies of the base in GPU memory, 7B", "1", "2", "1 + QKV (1.06)", find(result, "device", "7b"), reached
    )


def _switch(result: Result) -> Row:
    def reached(run: Run) -> tuple[str, bool]:
        seconds = run["sleep_seconds"] + run["wake_seconds"]
        return f"{seconds:.2f} s", seconds <= 0.25

    peer = find(result, "trl", "7b")
    theirs = f"{mean(peer, 'sleep') + mean(peer, 'wake'):.2f} s" if peer else ""
    return _row(
        "KV cache released and restored, 7B",
        "0 if it can stay",
        theirs,
        "0.25 s",
        find(result, "device", "7b"),
        reached,
    )


def _mfu(result: Result) -> Row:
    def reached(run: Run) -> tuple[str, bool]:
        return f"{mfu(result, run):.2f}", mfu(result, run) >= 0.65

    peer = find(result, "trl", "7b")
    theirs = f"{mfu(result, peer):.2f}" if peer else ""
    return _row("training MFU, 7B", "1", theirs, "0.65", find(result, "lorarl", "7b"), reached)


def _two_gpus(result: Result) -> list[Row]:
    one, found = find(result, "lorarl", "7b"), []
    for what, completions in (("twice the prompts", 1024), ("the same step", 512)):

        def reached(run: Run, one: Run | None = one) -> tuple[str, bool]:
            if one is None:
                return f"{mean(run, 'seconds'):.2f} s", False
            factor = (run["completions"] / mean(run, "seconds")) / (one["completions"] / mean(one, "seconds"))
            return f"{factor:.2f}x", factor >= 1.85

        name = f"2 GPUs over 1, 7B, data parallel, {what}"
        found.append(_row(name, "2.0x", "", "1.85x", find(result, "lorarl", "7b", 2, completions), reached))
    return found


def markdown(result: Result, source: Path) -> str:
    """Return the generated part of docs/performance.md."""
    gpu = result["machine"]["gpus"][0]["name"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [
        f"{result['date'][:10]}, {gpu}, {result['matmul_tflops']:.0f} TFLOP/s in a large bf16 matrix product; "
        f"{versions}.",
        f"Raw figures: [{source.name}]({Path('..') / source}). Commands:",
        "",
        "```",
        *result["commands"],
        "```",
        "",
        "| | floor | TRL, same run | target | lorarl |",
        "|---|---|---|---|---|",
        *(f"| {r.what} | {r.floor} | {r.peer} | {r.target} | {_verdict(r)} |" for r in rows(result)),
        "",
        "Where a step's seconds go:",
        "",
        f"| | {' | '.join(name.replace('_', ' ') for name in PHASES)} | **step** |",
        f"|---|{'---|' * (len(PHASES) + 1)}",
        *(f"| {label(run)} | {_phase_seconds(run)} | **{mean(run, 'seconds'):.2f}** |" for run in shown(result)),
        "",
        "| | completion tokens/s | tokens/s while generating | train tokens/s | MFU | peak GPU memory |",
        "|---|---|---|---|---|---|",
        *(f"| {label(run)} | {_speeds(result, run)} |" for run in shown(result)),
        "",
        f"![Seconds per step by phase]({PLOT.relative_to('docs')})",
    ]
    return "\n".join(lines)


def _phase_seconds(run: Run) -> str:
    return " | ".join(f"{mean(run, name):.2f}" for name in PHASES)


def _verdict(row: Row) -> str:
    if row.reached is None:
        return "not measured"
    return f"{row.reached} (missed)" if row.met is False else row.reached


def _speeds(result: Result, run: Run) -> str:
    tokens = mean(run, "response_tokens")
    return (
        f"{tokens / mean(run, 'seconds'):,.0f} | {tokens / mean(run, 'generate'):,.0f} | "
        f"{mean(run, 'tokens') / train_seconds(run):,.0f} | "
        f"{mfu(result, run):.2f} | {run['peak_memory_bytes'] / 1e9:.0f} GB"
    )


def shown(result: Result) -> list[Run]:
    """Return the runs with steps: smaller models and fewer GPUs first, ours before the peer's."""
    runs = [run for run in result["runs"] if "steps" in run]
    return sorted(
        runs, key=lambda run: (list(SHAPES).index(run["size"]), run["gpus"], run["completions"], run["system"])
    )


def label(run: Run) -> str:
    """Return a run's name for people."""
    setting = {"best": " (tuned)", "default": " (its defaults)"}.get(
        run["setting"], f" ({run['setting']})" if run["setting"] else ""
    )
    gpus = "" if run["gpus"] == 1 else f", {run['gpus']} GPUs, {run['completions']} completions"
    return f"{TITLES.get(run['size'], run['size'])} {run['system']}{setting}{gpus}"


PHASE_COLOURS = {
    "wake": "#93c5fd",
    "generate": "#2563eb",
    "reward": "#7c3aed",
    "sleep": "#5eead4",
    "forward_backward": "#0d9488",
    "optimizer": "#84cc16",
    "sync": "#f59e0b",
    "checkpoint": "#ef4444",
    "evaluate": "#ec4899",
    "other": "#94a3b8",
    "old_logprobs": "#fca5a5",  # a phase that only the peer has
}


def plot(result: Result) -> Any:
    """Draw one bar per run: the seconds of a step by phase."""
    from matplotlib.figure import Figure

    sizes: Sequence[str] = list(dict.fromkeys(run["size"] for run in shown(result)))
    figure = Figure(figsize=(7.2, 1.1 + 0.42 * len(shown(result))), layout="constrained")
    heights = [sum(run["size"] == size for run in shown(result)) for size in sizes]
    for number, (size, axes) in enumerate(
        zip(sizes, figure.subplots(len(sizes), squeeze=False, height_ratios=heights)[:, 0], strict=True)
    ):
        runs = [run for run in shown(result) if run["size"] == size][::-1]
        left = [0.0] * len(runs)
        for phase in PHASES:
            seconds = [mean(run, phase) for run in runs]
            axes.barh(
                [label(run) for run in runs],
                seconds,
                left=left,
                color=PHASE_COLOURS[phase],
                label=phase.replace("_", " "),
                height=0.65,
            )
            left = [a + b for a, b in zip(left, seconds, strict=True)]
        for row, total in enumerate(left):
            axes.text(total, row, f" {total:.1f} s", va="center", fontsize=8.5)
        axes.margins(x=0.08)
        axes.grid(visible=False, axis="y")
        if number == len(sizes) - 1:
            axes.set_xlabel("seconds per step")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5)
    return figure


def render(result: Result, root: Path, source: Path) -> None:
    """Write the generated part of docs/performance.md, and its plot."""
    from lorarl_trainer.progress.plots import to_svg

    write_between(root / DOCUMENT, BEGIN, END, lambda: markdown(result, source))
    (root / PLOT).parent.mkdir(parents=True, exist_ok=True)
    (root / PLOT).write_bytes(to_svg(lambda: plot(result)))
