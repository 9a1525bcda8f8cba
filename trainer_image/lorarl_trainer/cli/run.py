"""`lorarl run`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lorarl_trainer.cli import options
from lorarl_trainer.cli.help import Command


@click.command(
    "run",
    cls=Command,
    examples=[
        "lorarl run job.yaml --dry-run",
        "lorarl run job.yaml",
        "lorarl run job.yaml --set metadata.name=seed1 --set spec.trainer.seed=1",
    ],
)
@click.argument("manifest", type=options.FILE)
@options.out_dir
@options.overrides
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check everything that needs no worker, show a prompt, score four rows and plan memory and time, in seconds.",
)
@click.option(
    "--in-cluster",
    is_flag=True,
    help="Run as the driver in a cluster and write progress to the job's status. Set by the operator.",
)
@click.option(
    "--dump-rollouts",
    "dump",
    type=options.FILE,
    metavar="DIR",
    help="Write each step's rollouts into DIR: tokens, log-probabilities, rewards and advantages.",
)
@click.option(
    "--replay",
    type=options.FILE,
    metavar="DIR",
    help="Train on the rollouts of DIR, without an engine and without evaluations.",
)
def command(
    manifest: Path,
    out_dir: Path | None,
    overrides: tuple[str, ...],
    dry_run: bool,
    in_cluster: bool,
    dump: Path | None,
    replay: Path | None,
) -> None:
    """Run a manifest's job on this machine, without a cluster.

    On Ctrl-C or SIGTERM it finishes its step, publishes a checkpoint and exits with code 75; before the first step it
    has nothing to publish, and ends at once. Run the same command again to resume.
    """
    if (dump or replay) and (dry_run or in_cluster):
        raise click.UsageError("--dump-rollouts and --replay are for a run on this machine.")
    if dump and replay:
        raise click.UsageError("--dump-rollouts and --replay exclude each other: a replay generates nothing.")
    if dry_run:
        from lorarl_trainer.dry_run import dry_run as dry

        sys.exit(dry.dry_run(manifest, out_dir, list(overrides)))
    from lorarl_trainer.launch.replay import Rehearsal
    from lorarl_trainer.launch.run import run_manifest

    sys.exit(run_manifest(manifest, out_dir, list(overrides), in_cluster, Rehearsal(dump, replay)))
