"""`lorarl sweep`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lorarl_api.sweeps.stopping import MIN_TRIALS, START_AFTER
from lorarl_trainer.cli import options
from lorarl_trainer.cli.help import Command


@click.command(
    "sweep",
    cls=Command,
    examples=[
        "lorarl sweep job.yaml --over spec.trainer.learningRate=1e-5,3e-5 --over spec.trainer.seed=0,1",
        "lorarl sweep job.yaml --over spec.adapter.rank=8,32 --objective eval_score",
        "lorarl sweep job.yaml --over spec.trainer.seed=0,1,2,3,4,5,6,7 --share --at-once 4",
        "lorarl sweep job.yaml --over spec.trainer.seed=0,1,2,3 --at-once 4 --stop median --start-after 20",
        "lorarl sweep job.yaml --over 'spec.adapter.targetModules=[q_proj, v_proj],[all-linear]' --at-once 2",
    ],
)
@click.argument("manifest", type=options.FILE)
@click.option(
    "--over",
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
    type=click.Choice(["median"]),
    help="End a trial whose best value is worse than the median of the others at its step. It publishes a checkpoint, "
    "and without this option it continues.",
)
@click.option(
    "--start-after",
    type=click.IntRange(min=1),
    default=START_AFTER,
    show_default=True,
    help="With --stop: steps that a trial may always make.",
)
@click.option(
    "--min-trials",
    type=click.IntRange(min=1),
    default=MIN_TRIALS,
    show_default=True,
    help="With --stop: how many other trials must have reached a step before it stops any.",
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
    start_after: int,
    min_trials: int,
    out_dir: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Train a job with each combination of some values, and compare.

    Each trial is an ordinary run, with its own name and folder. Run the same command again to continue, also with more
    values or steps.
    """
    from lorarl_api.load import load_job
    from lorarl_api.sweeps.stopping import MedianRule
    from lorarl_trainer.cli.compare import print_comparison
    from lorarl_trainer.dry_run.local_model import judge_local_model
    from lorarl_trainer.launch.early_stopping import EarlyStopping
    from lorarl_trainer.launch.run import EXIT_FAILED, EXIT_INTERRUPTED
    from lorarl_trainer.launch.sharing import groups_of
    from lorarl_trainer.launch.sweep import best, grid, jobs_of, reached, usual_objective
    from lorarl_trainer.launch.trials import Trials
    from lorarl_trainer.progress import METRICS, read_rows
    from lorarl_trainer.progress.runs import run_folder

    def say(line: str) -> None:
        click.echo(line)

    job = load_job(manifest, overrides)
    folder = out_dir or Path("out") / f"{job.name}-sweep"
    trials = grid(job.name, over, overrides, folder)
    stopping = EarlyStopping(MedianRule(start_after, min_trials), trials, objective) if stop else None
    jobs = jobs_of(manifest, trials, judge_local_model)
    groups, lines = groups_of(manifest, trials, jobs, folder, at_once, share=share)
    made = Trials(manifest, say, stopping)
    say(f"{len(trials)} trials, {at_once} at a time, in {folder}")
    for line in lines:
        say(line)
    codes = made.run(groups)
    there = [trial for trial in trials if run_folder(str(trial.folder))]
    if len(there) > 1:
        print_comparison([trial.folder for trial in there], folder / "compare.html")
    rows = {trial: read_rows(trial.folder / METRICS) for trial in there}
    objective = objective or usual_objective(rows.values())
    values = {trial: value for trial, of_run in rows.items() if (value := reached(of_run, objective))}
    if values:
        say(f"Best  {(first := best(values)).label}: {values[first]}, in {first.folder}")
    else:
        say(f"No trial has {objective} yet. The columns of each are in its metrics.jsonl.")
    if made.interrupted:
        say("Run the same command again to continue.")
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(EXIT_FAILED if any(codes.values()) else 0)
