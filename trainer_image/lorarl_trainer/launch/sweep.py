"""`lorarl sweep`: a job's manifest with each combination of some values, as runs in one folder.

The trials are processes of `lorarl run`. So each is what it would be alone, and resumes as it would alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from lorarl_api.faults import ManifestError
from lorarl_api.load import load_job
from lorarl_api.sweeps import trials as sweeps
from lorarl_api.sweeps.objective import best_of, usual_goal
from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.devices.nvidia_smi import visible_gpus
from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.launch.local import refuse_cluster_jobs
from lorarl_trainer.progress.evaluations import evaluations_of
from lorarl_trainer.progress.results import LATEST
from lorarl_trainer.samples.columns import COMPONENT, eval_column

_OPENING, _CLOSING, _QUOTES = "[{", "]}", "'\""
_EVALUATION = "eval_"
"""What each column of an evaluation begins with: its score or loss, pass@k, and parts of a reward."""
_OF_A_NAME = re.compile(r"eval_([^/]+)/(?:score|loss|pass_at_\d+)")
_TRAINED = ("reward_mean", "preference/accuracy", "teacher/kl", "loss")
"""What says whether a training without evaluations worked: the first that its steps have."""
_NO_FILE = re.compile(r"[^\w.,=+-]+")

_LONGEST_FILE = 100
"""Characters of a trial's folder."""


@dataclass(frozen=True)
class Trial:
    """A job of the sweep.

    Attributes:
        label: the values that are its own, for people.
        name: the job's.
        overrides: the assignments that make it of the manifest, its name among them.
        folder: its run's.
    """

    label: str
    name: str
    overrides: tuple[str, ...]
    folder: Path


def grid(name: str, over: Sequence[str], overrides: Sequence[str], folder: Path) -> list[Trial]:
    """Return a trial for each combination of values. A trial's name does not depend on what else there is.

    Args:
        name: of the manifest's job.
        over: `PATH=VALUE,VALUE` each. A value is YAML; its own commas are inside of brackets, braces or quotes.
        overrides: assignments that all trials have.
        folder: the sweep's.

    Raises:
        InputError: one of `over` is no such text, or two trials would have one name.
    """
    axes = dict(map(_axis, over))
    if len(axes) < len(over):
        raise InputError("--over", ", ".join(over), "each path once", "Put all values of a path into one --over.")
    made = sweeps.grid(name, axes)
    if sweeps.twice(made):
        hint = "Leave out values that are there twice, or that only differ in their signs."
        raise InputError("--over", ", ".join(over), "trials of different names", hint)
    return [_of(trial, overrides, folder) for trial in made]


def _of(trial: sweeps.Trial, overrides: Sequence[str], folder: Path) -> Trial:
    own = [f"{path}={value}" for path, value in trial.values]
    file = sweeps.shortened(_NO_FILE.sub("_", trial.label), _LONGEST_FILE)
    return Trial(trial.label, trial.name, (*overrides, *own, f"metadata.name={trial.name}"), folder / file)


def _axis(over: str) -> tuple[str, list[str]]:
    path, equals, text = over.partition("=")
    values = list(_split(text))
    if not equals or not path.strip() or not all(values):
        raise InputError("--over", over, "PATH=VALUE,VALUE", "Write for example --over spec.trainer.seed=0,1.")
    return path.strip(), values


def _split(text: str) -> Iterator[str]:
    """Yield the values between the commas that are outside of brackets, braces and quotes."""
    value, depth, quote = "", 0, ""
    for letter in text:
        if quote or letter in _QUOTES:
            quote = letter if not quote else "" if letter == quote else quote
        else:
            depth += (letter in _OPENING) - (letter in _CLOSING)
        if letter == "," and not depth and not quote:
            yield value.strip()
            value = ""
        else:
            value += letter
    yield value.strip()


def jobs_of(
    manifest: Path, trials: Sequence[Trial], judge: Callable[[LoRARLJob], tuple[str | None, str | None]]
) -> list[LoRARLJob]:
    """Return the jobs of all trials. `judge` returns why a job's base model cannot be trained, if so.

    Raises:
        InputError: some cannot run, or would train the same as another one. It has a line for each.
    """
    jobs, found = dict[Trial, LoRARLJob](), []
    for trial in trials:
        try:
            job = load_job(manifest, trial.overrides)
            refuse_cluster_jobs(job)
            fault, _ = judge(job)
            if same := next((other.label for other, one in jobs.items() if one.spec == job.spec), None):
                why = "its values are equal ones, are not read, or another --over replaces them"
                fault = f"it would train the same as {same}: {why}"
            jobs[trial] = job
        except (ManifestError, LorarlError) as error:
            fault = "; ".join(str(error).splitlines())
        if fault:
            found.append(f"{trial.label}: {fault}")
    if found:
        got = f"{len(found)} of {len(trials)} trials that cannot run"
        raise InputError("--over", got, "only ones that can", "\n".join(["Nothing was started.", *found]))
    return list(jobs.values())


def require_evaluated(objective: str, jobs: Collection[LoRARLJob]) -> None:
    """Refuse a column of an evaluation that no job makes: all trials would be trained, and none compared.

    Raises:
        InputError: there is none.
    """
    names = dict.fromkeys(name for job in jobs for name, _ in job.spec.data.evaluations)
    there = [eval_column(name, "") for name in names]
    named = _OF_A_NAME.fullmatch(objective)
    is_other = named is not None and named[1] not in names and named[1] != COMPONENT.rstrip("/")
    if objective.startswith(_EVALUATION) and (is_other or not any(map(objective.startswith, there))):
        got = f"{objective}, of an evaluation that no trial has"
        known = ", ".join(f"{column}score" for column in there)
        hint = f"Name one of these: {known}." if there else "Add data.eval to the job, or name a column of its steps."
        raise InputError("--objective", got, "a column that a trial has", hint)


def shares(jobs: Sequence[LoRARLJob], at_once: int) -> list[dict[str, str]]:
    """Return the environment of each job that runs at a time: its GPUs, or nothing on a CPU.

    Raises:
        InputError: there are too few GPUs for so many.
    """
    each = max(job.spec.cluster.gpus_per_node + job.spec.engine_gpus for job in jobs)
    if at_once == 1 or not each:
        return [{}] * at_once
    gpus = visible_gpus()
    if len(gpus) < each * at_once:
        hint = "Set a smaller --at-once."
        expected = f"{each * at_once} GPUs, of which each trial has {each} for itself"
        raise InputError("--at-once", f"{at_once}, on a machine with {len(gpus)}", expected, hint)
    return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[place * each :][:each])} for place in range(at_once)]


@dataclass(frozen=True)
class Value:
    """What a trial reached: the value of a column of metrics.jsonl, and the step; 0 for a mean over steps."""

    column: str
    value: float
    step: int

    def __str__(self) -> str:
        return f"{self.column} {self.value:.4g}" + (f" at step {self.step}" if self.step else f", last {LATEST} steps")


def usual_objective(runs: Collection[Sequence[Mapping[str, Any]]]) -> str:
    """Return the column of the first evaluation of runs' rows, or else one of what they trained on."""
    if evaluations := next(filter(None, map(evaluations_of, runs)), None):
        return eval_column(evaluations[0]["name"], evaluations[0]["metric"])
    there = {column for rows in runs for row in rows for column in row}
    return next((column for column in _TRAINED if column in there), _TRAINED[0])


def reached(rows: Sequence[Mapping[str, Any]], objective: str) -> Value | None:
    """Return the best evaluation of a run, or the mean of a step's metric over the last steps; None without any.

    `objective`: a column of metrics.jsonl. Less of a loss or divergence is better, and more of all else.
    """
    points = [(step, value) for step, value in curve(rows, objective) if math.isfinite(value)]
    if not points:
        return None
    if not objective.startswith(_EVALUATION):
        return Value(objective, points[-1][1], 0)
    best = usual_goal(objective).best(*(value for _, value in points))
    return Value(objective, best, max(step for step, value in points if value == best))


def curve(rows: Sequence[Mapping[str, Any]], objective: str) -> list[tuple[int, float]]:
    """Return the steps of a run with the values of its objective after them: NaN where it was no finite number.

    A step of training is noisy, so it has the mean over the last steps. One without a number has the mean before it,
    if one of the last steps has a number. Of an evaluation each result counts by itself, but that before training.
    """
    found = [(int(row["step"]), _number(row[objective])) for row in rows if objective in row]
    if objective.startswith(_EVALUATION):
        return [(step, value) for step, value in found if step > 0]
    return [
        (step, _mean([value for _, value in found[max(0, end - 2 * LATEST) : end]]))
        for end, (step, _) in enumerate(found, 1)
    ]


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _mean(values: Sequence[float]) -> float:
    """Return the mean over the last steps up to the newest that has a number; NaN if none of the last has."""
    newest = next((end for end in range(len(values), 0, -1) if math.isfinite(values[end - 1])), 0)
    if newest <= len(values) - LATEST:
        return math.nan
    return fmean(filter(math.isfinite, values[max(0, newest - LATEST) : newest]))


def best(reached: Mapping[Trial, Value]) -> list[Trial]:
    """Return the trials with the best value, in the order of the sweep: the first one is chosen."""
    goal = usual_goal(next(iter(reached.values())).column)
    return best_of({trial: value.value for trial, value in reached.items()}, goal)
