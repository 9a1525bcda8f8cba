"""What a person sees while training: one line a step, and a progress bar where there is a terminal."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from ..timing import OTHER
from .events import (
    CheckpointDone,
    EvalDone,
    Event,
    Noted,
    RunFinished,
    RunStarted,
    Sampled,
    StartedUp,
    StepDone,
    Warned,
    startup_of,
)

RECENT_STEPS = 50
SHORT_SECONDS = 0.5
"""Parts of a start that took less are not named."""


class TimeLeft:
    """Time left, from the median of the latest steps: a slow first step or a rare checkpoint does not move it."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)

    def after(self, event: StepDone) -> float:
        """Seconds left after this step."""
        self._recent.append(sum(event.seconds.values()))
        return statistics.median(self._recent) * (event.total_steps - event.step)

    def evaluated(self, event: EvalDone) -> None:
        """Count an evaluation to its step."""
        if self._recent:
            self._recent[-1] += event.seconds


class ConsoleSink:
    """Prints to `stream`: lines and a live bar on a terminal, plain lines without control characters elsewhere."""

    name = "console"

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._time_left = TimeLeft()
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def on_event(self, event: Event) -> None:
        """Print the event's line, if it has one, and move the bar."""
        match event:
            case RunStarted():
                for line in header(event):
                    self._print(line)
                if is_terminal(self._stream):
                    self._start_bar(event)
            case StepDone():
                left = self._time_left.after(event)
                self._print(step_line(event, left))
                if self._bar is not None:
                    self._bar.update(self._task, completed=event.step, figures=bar_figures(event, left))
            case RunFinished():
                self._stop_bar()
                self._print(last_line(event))
            case EvalDone():
                self._time_left.evaluated(event)
                self._print(*remark(event))
            case Sampled():
                pass  # samples.jsonl and the report have room for them
            case _:
                self._print(*remark(event))

    def close(self) -> None:
        """Give the terminal back."""
        self._stop_bar()

    def _print(self, line: str, style: str | None = None) -> None:
        if self._bar is not None:
            # highlight and markup off: a path in brackets is no colour.
            self._bar.console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)

    def _start_bar(self, event: RunStarted) -> None:
        console = Console(file=self._stream)
        columns = (
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[figures]}"),
        )
        self._bar = Progress(*columns, console=console, refresh_per_second=4)
        self._task = self._bar.add_task(
            "", total=event.total_steps, completed=event.resumed_from_step or 0, figures="first step ..."
        )
        self._bar.start()

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def is_terminal(stream: TextIO) -> bool:
    """Whether a live bar can be drawn. rich's own answer is not asked: FORCE_COLOR would put control characters into files."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def header(event: RunStarted) -> list[str]:
    """What is trained, said once: the modules that were found, and how many parameters that makes."""
    adapter = event.adapter
    share = adapter.trainable_parameters / adapter.total_parameters
    resumed = "" if event.resumed_from_step is None else f", going on after step {event.resumed_from_step}"
    return [
        f"job {event.job}: {event.algorithm} on {event.base_model}",
        f"adapter: {adapter.type}, rank {adapter.rank}, alpha {adapter.alpha}, on {len(adapter.modules)} modules:",
        *(f"  {name}" for name in collapse_layers(adapter.modules)),
        f"trainable parameters: {adapter.trainable_parameters:,} of {adapter.total_parameters:,} ({share:.2%})",
        f"steps: {event.total_steps}{resumed}; output in {event.out_dir}",
    ]


def remark(event: StartedUp | EvalDone | CheckpointDone | Noted | Warned) -> tuple[str, str | None]:
    """The line of an event that is told as it is, and its style."""
    match event:
        case StartedUp():
            return start_line(event), "dim"
        case EvalDone():
            return f"step {event.step}  {eval_figures(event)}", None
        case CheckpointDone():
            return f"step {event.step}  checkpoint {event.uri}", None
        case Noted():
            return event.text, "dim"
        case Warned():
            return f"warning: {event.text}", "yellow"


def start_line(event: StartedUp) -> str:
    """Where the start's time went: what was waited for, with its own parts, and what went on beside it. Short parts go into `other`."""
    startup = startup_of(event)
    waited_for: dict[str, float] = startup["waited_for"]
    shown = {name: seconds for name, seconds in waited_for.items() if seconds >= SHORT_SECONDS and name != OTHER}
    rest = sum(waited_for.values()) - sum(shown.values())
    within: dict[str, list[str]] = defaultdict(list)
    beside: dict[str, float] = defaultdict(float)
    for part in startup["parts"]:
        whole, _, name = part["name"].partition("/")
        if part["seconds"] >= SHORT_SECONDS:
            if name:
                within[whole].append(f"{name} {part['seconds']:.1f}")
            else:
                beside[whole] += part["seconds"]
    parts = [
        f"{name} {seconds:.1f}" + (f" ({', '.join(within[name])})" if within[name] else "")
        for name, seconds in shown.items()
    ]
    alongside = [f"{name} {seconds:.1f}" for name, seconds in beside.items() if name not in shown]
    token = (
        "" if startup["first_token_seconds"] is None else f"first token after {startup['first_token_seconds']:.1f} s, "
    )
    line = f"{token}first update after {startup['first_update_seconds']:.1f} s: {', '.join([*parts, f'{OTHER} {rest:.1f}'])}"
    return line + (f"; meanwhile {', '.join(alongside)}" if alongside else "")


def step_line(event: StepDone, left: float) -> str:
    """A step in one line."""
    metrics = event.metrics
    parts = [f"step {event.step:>{len(str(event.total_steps))}}/{event.total_steps}"]
    if "reward_mean" in metrics:
        parts.append(f"reward {metrics['reward_mean']:.3f}")
    parts.append(f"loss {metrics['loss']:.4f}")
    if "kl" in metrics:
        parts.append(f"KL {metrics['kl']:.2e}")
    if failures := metrics.get("reward_failures"):
        parts.append(f"{failures:.0f} rewards failed")
    parts += [
        f"{event.tokens_per_second:,.0f} tokens/s",
        f"{sum(event.seconds.values()):.2f} s",
        f"{duration(left)} left",
    ]
    return "  ".join(parts)


def bar_figures(event: StepDone, left: float) -> str:
    """The figures beside the bar."""
    metrics = event.metrics
    first = f"reward {metrics['reward_mean']:.3f}" if "reward_mean" in metrics else f"loss {metrics['loss']:.3f}"
    kl = [f"KL {metrics['kl']:.1e}"] if "kl" in metrics else []
    return "  ".join([first, *kl, f"{event.tokens_per_second:,.0f} tokens/s", f"{duration(left)} left"])


def eval_figures(event: EvalDone) -> str:
    """An evaluation in a few words."""
    figures = (
        f"score {event.score:.3f}"
        if event.score is not None
        else f"loss {event.loss:.4f}"
        if event.loss is not None
        else "no figure"
    )
    return f"held-out {figures} ({event.rows:,} rows)"


def last_line(event: RunFinished) -> str:
    """How the run ended. Why it failed is said once, where errors go."""
    because = f": {event.message}" if event.message and event.state != "failed" else ""
    when = f"after step {event.step}" if event.step else "before the first step was done"
    return f"{event.state} {when}, {duration(event.total_seconds)} in all{because}"


def duration(seconds: float) -> str:
    """Seconds as 0:07, 12:30 or 3:04:05."""
    if not math.isfinite(seconds):
        return "?"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def collapse_layers(names: Iterable[str]) -> list[str]:
    """Module names with their layer numbers collapsed: 28 times model.layers.N.mlp.up_proj is one model.layers.{0-27}.mlp.up_proj.

    Only the first number in a name is a layer's; others, as an expert's, are kept.
    """
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    result: dict[str, None] = {}
    for name in names:
        match = re.search(r"(?<=\.)\d+(?=\.)", name)
        if match is None:
            result[name] = None
        else:
            numbers[name[: match.start()], name[match.end() :]].append(int(match.group()))
    for (before, after), layers in numbers.items():
        result[
            f"{before}{{{_ranges(sorted(set(layers)))}}}{after}" if len(layers) > 1 else f"{before}{layers[0]}{after}"
        ] = None
    return list(result)


def _ranges(numbers: list[int]) -> str:
    """0, 1, 2, 5 as 0-2,5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in parts)
