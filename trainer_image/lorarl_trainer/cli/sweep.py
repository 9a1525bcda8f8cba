"""`lorarl sweep`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lorarl_api.sweeps.halving import FACTOR
from lorarl_api.sweeps.stopping import MIN_TRIALS, START_AFTER
from lorarl_trainer.cli import options
from lorarl_trainer.cli.field_option import FieldOption
from lorarl_trainer.cli.help import Command

if TYPE_CHECKING:
    from lorarl_trainer.launch.early_stopping import EarlyStopping
    from lorarl_trainer.launch.sweep import Trial


@click.command(
    "sweep",
    cls=Command,
    examples=[
        "lorarl sweep job.yaml --over spec.trainer.learningRate=1e-5,3e-5 --over spec.trainer.seed=0,1",
        "lorarl sweep job.yaml --over spec.adapter.rank=8,32 --objective eval_score",
        "lorarl sweep job.yaml --over spec.trainer.seed=0,1,2,3,4,5,6,7 --share --at-once 4",
        "lorarl sweep job.yaml --over spec.trainer.seed=0,1,2,3 --at-once 4 --stop median --start-after 20",
        "lorarl sweep job.yaml --over spec.trainer.learningRate=1e-6,3e-6,1e-5,3e-5,1e-4 --stop halving",
        "lorarl sweep job.yaml --over 'spec.adapter.targetModules=[q_proj, v_proj],[all-linear]' --at-once 2",
    ],
)
@click.argument("manifest", type=options.FILE)
@click.option(
    "--over",
    cls=FieldOption,
    fields=lambda values: [value.partition("=")[0].strip() for value in values],
    multiple=True,
    required=True,
    metavar="PATH=VALUE,VALUE",
    help="Values of a field. Can be repeated: then each combination is a trial.",
)
@click.option(
    "--objective",
    metavar="COLUMN",
    help="Column of metrics.jsonl that names the best trial; less of a loss is better.  "
    "[default: the first held-out score or loss, or else reward_mean, or what the algorithm has in its place]",
)
@click.option(
    "--at-once",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Trials that run at a time. Each has its own GPUs, or all share the CPU, or a worker with --share.",
)
@click.option(
    "--share",
    is_flag=True,
    help="Trials that differ in numbers of the training alone share one worker and its base model, and take turns. "
    "The others run as without it.",
)
@click.option(
    "--stop",
    type=click.Choice(["median", "halving"]),
    help="End some trials early. median: those whose best value is worse than the median of the others at their step. "
    "halving: all but the best at each rung of steps. They publish a checkpoint, and continue without this "
    "option.",
)
@click.option(
    "--start-after",
    type=click.IntRange(min=1),
    help=f"With --stop: steps that a trial may always make.  [default: {START_AFTER}]",
)
@click.option(
    "--min-trials",
    type=click.IntRange(min=1),
    help=f"With --stop median: how many other trials must have reached a step before it stops any.  "
    f"[default: {MIN_TRIALS}]",
)
@click.option(
    "--factor",
    type=click.IntRange(min=2),
    help="With --stop halving: one of so many trials continues from a rung, and the next rung has so many times the "
    f"steps.  [default: {FACTOR}]",
)
@click.option("--out", "out_dir", type=options.FILE, help="Folder of the trials' folders.  [default: out/NAME-sweep]")
@options.overrides
def command(
    manifest: Path,
    over: tuple[str, ...],
    objective: str | None,
    at_once: int,
    share: bool,
    stop: str | None,
    start_after: int | None,
    min_trials: int | None,
    factor: int | None,
    out_dir: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Train a job with each combination of some values, and compare.

    Each trial is an ordinary run, with its own name and folder. Run the same command again to continue, also with more
    values or steps.
    """
    from lorarl_api.load import load_job
    from lorarl_trainer.cli.compare import print_comparison
    from lorarl_trainer.dry_run.local_model import judge_local_model
    from lorarl_trainer.launch.run import EXIT_FAILED, EXIT_INTERRUPTED
    from lorarl_trainer.launch.sharing import groups_of
    from lorarl_trainer.launch.sweep import best, grid, jobs_of, reached, require_evaluated, usual_objective
    from lorarl_trainer.launch.trials import Trials
    from lorarl_trainer.progress import METRICS, read_rows
    from lorarl_trainer.progress.runs import run_folder

    def say(line: str) -> None:
        click.echo(line)

    job = load_job(manifest, overrides)
    folder = out_dir or Path("out") / f"{job.name}-sweep"
    trials = grid(job.name, over, overrides, folder)
    jobs = jobs_of(manifest, trials, judge_local_model)
    if objective is not None:
        require_evaluated(objective, jobs)
    steps = {trial: job.spec.trainer.steps for trial, job in zip(trials, jobs, strict=True)}
    stopping = stopping_of(stop, start_after, min_trials, factor, steps, objective)
    groups, lines = groups_of(manifest, trials, jobs, folder, at_once, share=share)
    made = Trials(manifest, say, stopping)
    say(f"{len(trials)} trials, {at_once} at a time, in {folder}")
    for line in lines:
        say(line)
    codes = made.run(groups)
    there = [trial for trial in trials if run_folder(str(trial.folder))]
    rows = {trial: read_rows(trial.folder / METRICS) for trial in there}
    objective = objective or usual_objective(rows.values())
    values = {trial: value for trial, of_run in rows.items() if (value := reached(of_run, objective))}
    chosen = best(values) if values else []
    if len(there) > 1:
        said = dict.fromkeys(chosen, "equal to the best")
        said |= dict.fromkeys(chosen[:1], "best, the first of equal ones" if chosen[1:] else "best")
        print_comparison(
            [trial.folder for trial in there], folder / "compare.html", [said.get(one, "") for one in there]
        )
    for first in chosen[:1]:
        say(f"Best  {first.label}: {values[first]}, in {first.folder}")
    if chosen[1:]:
        say(f"Equal  {', '.join(one.label for one in chosen[1:])}. The first trial of the sweep is named the best.")
    if not chosen:
        say(f"No trial has {objective} yet. The columns of each are in its metrics.jsonl.")
    if made.interrupted:
        say("Run the same command again to continue.")
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(EXIT_FAILED if any(codes.values()) else 0)


def stopping_of(
    stop: str | None,
    start_after: int | None,
    min_trials: int | None,
    factor: int | None,
    steps: Mapping[Trial, int],
    objective: str | None,
) -> EarlyStopping | None:
    """Return what judges trials that are to make so many steps.

    Raises:
        InputError: an option is set that the others do not use, or no trial makes more than its first steps.
    """
    from lorarl_api.sweeps.halving import HalvingRule
    from lorarl_api.sweeps.stopping import MedianRule
    from lorarl_trainer.errors import InputError
    from lorarl_trainer.launch.early_stopping import HalvingStopping, MedianStopping, Reached

    set_for = {"--start-after": (start_after, stop is not None, "--stop median or --stop halving")}
    set_for["--min-trials"] = min_trials, stop == "median", "--stop median"
    set_for["--factor"] = factor, stop == "halving", "--stop halving"
    for option, (value, is_used, needed) in set_for.items():
        if value is not None and not is_used:
            got = f"{value} with --stop {stop}" if stop else f"{value} without --stop"
            raise InputError(option, got, f"it only with {needed}", f"Remove {option}, or add {needed}.")
    start_after, reached = start_after or START_AFTER, Reached(list(steps), objective)
    if stop and steps and start_after >= (most := max(steps.values())):
        hint = "Set a smaller --start-after, or leave out --stop."
        raise InputError("--start-after", f"{start_after}, with trials of {most} steps", "fewer steps", hint)
    match stop:
        case "median":
            return MedianStopping(MedianRule(start_after, min_trials or MIN_TRIALS), reached)
        case "halving":
            return HalvingStopping(HalvingRule(start_after, factor or FACTOR), reached, steps)
    return None
