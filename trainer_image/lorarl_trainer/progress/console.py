"""What a person sees during training: one line per step, and a progress bar on a terminal."""

from __future__ import annotations

import os
import re
import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from lorarl_trainer.progress.events import (
    BestFound,
    CheckpointDone,
    Downloading,
    EvalDone,
    Event,
    Noted,
    RecordOpened,
    RunFinished,
    RunStarted,
    Sampled,
    StartedUp,
    StepDone,
    Warned,
)
from lorarl_trainer.progress.start_bar import StartBar, duration
from lorarl_trainer.progress.worker_events import MoreWorkers, WorkersLost

RECENT_STEPS = 50


class TimeLeft:
    """Estimates the time left from the median duration of the latest steps.

    With the median, a slow first step or a rare checkpoint does not change the estimate.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)

    def after_step(self, event: StepDone) -> float:
        """Count a step; return the seconds left after it."""
        self._recent.append(sum(event.seconds.values()))
        return statistics.median(self._recent) * (event.total_steps - event.step)

    def add_evaluation(self, event: EvalDone) -> None:
        """Add the time of an evaluation to its step."""
        if self._recent:
            self._recent[-1] += event.seconds


class ConsoleSink:
    """Prints lines to `stream`; on a terminal with a live bar, elsewhere without control characters."""

    name = "console"

    def __init__(self, stream: TextIO, start_seconds: float | None = None) -> None:
        """`start_seconds` is how long the last start took; None if there was none."""
        self._stream = stream
        self._start_seconds = start_seconds
        self._started, self._resumed_from = False, 0
        self._time_left = TimeLeft()
        self._start: StartBar | None = None
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def on_event(self, event: Event) -> None:
        """Print the event's line, if it has one, and move the bar."""
        match event:
            case RunStarted():
                self._begin(event)
            case StepDone():
                left = self._time_left.after_step(event)
                self._print(step_line(event, left))
                if self._bar is not None:
                    self._bar.update(self._task, completed=event.step, text=bar_text(event, left))
            case RunFinished():
                self._stop_bar()
                self._print(final_line(event))
            case Downloading():
                if (bar := self._start_bar()) is not None:
                    bar.download(event)
            case Sampled() | StartedUp():
                pass  # these are long: they go to files and the report
            case CheckpointDone() if event.step <= self._resumed_from:
                pass  # the run resumes from it, and has said so
            case _:
                self._print(*styled_line(event))
                self._after_line(event)

    def close(self) -> None:
        self._stop_bar()

    def _print(self, line: str, style: str | None = None) -> None:
        if self._bar is not None:
            # Without highlight and markup: rich would take a path in brackets for a style.
            self._bar.console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)

    def _begin(self, event: RunStarted) -> None:
        """Print the header, and start the bar of the steps in place of that of the start."""
        self._stop_bar()
        self._started, self._resumed_from = True, event.resumed_from_step or 0
        for line in header_lines(event):
            self._print(line)
        if is_terminal(self._stream):
            self._begin_bar(event)

    def _after_line(
        self, event: EvalDone | CheckpointDone | BestFound | RecordOpened | Noted | Warned | WorkersLost | MoreWorkers
    ) -> None:
        """Move the clock or the bar after an event's line."""
        if isinstance(event, EvalDone):
            self._time_left.add_evaluation(event)
        elif isinstance(event, Noted) and (bar := self._start_bar()) is not None:
            bar.describe(event.text.partition("\n")[0].partition(";")[0])

    def _start_bar(self) -> StartBar | None:
        """Return the bar of the start; None after the start, and where there is no terminal."""
        if self._start is None and not self._started and is_terminal(self._stream):
            self._start = StartBar(self._stream, self._start_seconds)
            self._bar = self._start.progress
        return self._start

    def _begin_bar(self, event: RunStarted) -> None:
        console = Console(file=self._stream)
        columns = (
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
        )
        self._bar = Progress(*columns, console=console, refresh_per_second=4)
        self._task = self._bar.add_task(
            "", total=event.total_steps, completed=event.resumed_from_step or 0, text="first step ..."
        )
        self._bar.start()

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._start = None


def is_terminal(stream: TextIO) -> bool:
    """Return whether a live bar can be drawn.

    rich's own check is not used: with FORCE_COLOR it would write control characters into files.
    """
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def header_lines(event: RunStarted) -> list[str]:
    """Return the first lines of a run: what is trained, on which modules, with how many parameters."""
    adapter = event.adapter
    share = adapter.trainable_parameters / adapter.total_parameters
    expert = of_experts(adapter.expert_rank, adapter.shares_outer)
    return [
        f"job {event.job}: {event.algorithm} on {event.base_model}",
        f"adapter: {adapter.type}, rank {adapter.rank}{expert}, alpha {adapter.alpha}, "
        f"on {len(adapter.modules)} modules:",
        *(f"  {name}" for name in collapse_layers(adapter.modules)),
        f"trainable parameters: {adapter.trainable_parameters:,} of {adapter.total_parameters:,} ({share:.2%})",
        f"steps: {event.total_steps}; output in {event.out_dir}",
        *([resumption_line(event)] if event.resumed_from_step is not None else []),
    ]


def of_experts(rank: int | None, shares_outer: bool) -> str:
    """Return what there is to say of the adapters on experts beside the others' rank."""
    shared = ", outer matrices shared" if shares_outer else ""
    return f" (of each expert {rank}{shared})" if rank else ""


def resumption_line(event: RunStarted) -> str:
    """Return where a run resumes, and what its manifest changes."""
    return "; ".join([f"resuming after step {event.resumed_from_step}", *event.changes])


def styled_line(
    event: EvalDone | CheckpointDone | BestFound | RecordOpened | Noted | Warned | WorkersLost | MoreWorkers,
) -> tuple[str, str | None]:
    """Return the line of an event that changes nothing but the output, and its style."""
    match event:
        case EvalDone():
            return f"step {event.step}  {eval_text(event)}", None
        case CheckpointDone():
            # It is published while later steps are made, so its line may come after theirs.
            return f"checkpoint of step {event.step}: {event.uri}", None
        case BestFound():
            return f"step {event.step}  best so far: {event.metric} {event.value:.4g}", None
        case RecordOpened():
            return f"record of this run: {event.uri}", "dim"
        case Noted() | MoreWorkers():
            return event.text, "dim"
        case Warned() | WorkersLost():
            return f"warning: {event.text}", "yellow"


def step_line(event: StepDone, left: float) -> str:
    """Return a step in one line."""
    metrics = event.metrics
    parts = [f"step {event.step:>{len(str(event.total_steps))}}/{event.total_steps}", *learned(event)]
    if "entropy" in metrics:
        parts.append(f"entropy {metrics['entropy']:.3f}")
    if "kl" in metrics:
        parts.append(f"KL {metrics['kl']:.2e}")
    if "critic/explained_variance" in metrics:
        parts.append(f"critic explains {metrics['critic/explained_variance']:.0%}")
    parts += [
        f"{event.tokens_per_second:,.0f} tokens/s",
        f"{sum(event.seconds.values()):.2f} s",
        f"{duration(left)} left",
    ]
    return "  ".join(parts)


_OFTEN_CUT_OFF = 0.25
"""Share of a step's completions that are cut off from which on its line says so."""


def learned(event: StepDone) -> list[str]:
    """Return what a step says about learning: reward and signal; for sft the loss, for dpo the accuracy too.

    For distillation it is the divergence from the teacher.

    The loss of GRPO is left out. Advantages of a group add up to 0, so it is about 0 in good steps and bad ones.
    """
    metrics = event.metrics
    if "teacher/kl" in metrics:
        scored = metrics["teacher/scored_share"]
        return [f"KL to the teacher {metrics['teacher/kl']:.4f}", *([f"{scored:.1%} scored"] if scored < 1 else [])]
    if "reward_mean" not in metrics:
        right = metrics.get("preference/accuracy")
        accuracy = [] if right is None else [f"accuracy {right:.3f}"]
        return [f"loss {metrics['loss']:.4f}", *accuracy]
    # With dynamic sampling, the metrics are of all that was generated; the event has the groups that are trained.
    groups = round(metrics.get("sampling/prompts", event.groups))
    completions = event.completions * groups // event.groups if event.groups else event.completions
    reward = f"reward {metrics['reward_mean']:.3f}"
    if failures := metrics.get("reward_failures"):
        reward += f" ({completions - failures:.0f} of {completions} scored)"
    signal = metrics.get("signal_share")
    shown = [reward] if signal is None else [reward, f"signal {signal * groups:.0f}/{groups}"]
    if (cut := metrics.get("truncated_share", 0.0)) >= _OFTEN_CUT_OFF:
        shown.append(f"cut off {cut:.0%}")
    return [*shown, *_stopped_programs(metrics, round(completions - (failures or 0)))]


def _stopped_programs(metrics: Mapping[str, float], scored: int) -> list[str]:
    """Return how many programs of completions were stopped, by cause; see rewards/code/scorer.py."""
    counts = {
        found[1]: round(share * scored)
        for name, share in metrics.items()
        if share and (found := re.fullmatch(r"reward/(?:.+/)?stopped_(\w+)", name))
    }
    return [f"programs stopped: {', '.join(f'{count} {cause}' for cause, count in counts.items())}"] if counts else []


def bar_text(event: StepDone, left: float) -> str:
    """Return the text beside the bar."""
    speed = f"{event.tokens_per_second:,.0f} tokens/s"
    return "  ".join([*learned(event), speed, f"{duration(left)} left"])


def eval_text(event: EvalDone) -> str:
    """Return an evaluation in a few words."""
    results = ["result missing"]
    if event.score is not None:
        results = [f"score {event.score:.3f}{_interval_text(event, 'score', 3)}"]
    elif event.loss is not None:
        results = [f"loss {event.loss:.4f}{_interval_text(event, 'loss', 4)}"]
    for name, value in event.metrics.items():
        if k := re.fullmatch(r"pass_at_(\d+)", name):
            results.append(f"pass@{k[1]} {value:.3f}{_interval_text(event, name, 3)}")
    times = f" x {event.samples}" if event.samples > 1 else ""
    scored, completions = "", event.rows * event.samples
    if event.unscored:
        scored = f", {completions - event.unscored:,} of {completions:,} completions scored"
    return f"{event.name or 'held-out'} {', '.join(results)} ({event.rows:,} rows{times}{scored})"


def _interval_text(event: EvalDone, name: str, digits: int) -> str:
    """Return a value's 95% interval in brackets, if there is one."""
    low, high = event.metrics.get(f"{name}_low"), event.metrics.get(f"{name}_high")
    return "" if low is None or high is None else f" [{low:.{digits}f}, {high:.{digits}f}]"


def final_line(event: RunFinished) -> str:
    """Return how the run ended. A failure's message is left out: it goes to standard error."""
    because = f": {event.message}" if event.message and event.state != "failed" else ""
    then = f"; {event.what_next}" if event.what_next else ""
    when = f"after step {event.step}" if event.step else "before the first step finished"
    return f"{event.state} {when}, {duration(event.total_seconds)} in total{because}{then}"


def collapse_layers(names: Iterable[str]) -> list[str]:
    """Return module names with their layer numbers collapsed.

    28 names model.layers.N.mlp.up_proj become one, model.layers.{0-27}.mlp.up_proj. Only the first number in a name is
    taken for a layer's. Later ones, such as an expert's, are kept.
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
    """Return 0, 1, 2, 5 as 0-2,5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in parts)
