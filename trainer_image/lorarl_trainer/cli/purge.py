"""`lorarl purge`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from lorarl_trainer.cli import options
from lorarl_trainer.cli.help import Command

EXIT_NOT_OURS = 77
"""EX_NOPERM of sysexits.h: another try would not delete anything either. The operator's clean-up Job knows it."""

READS = ("metadata.name", "metadata.uid", "spec.checkpoint.uri", "spec.checkpoint.credentialsSecret")
"""What a purge reads of a job."""


@click.command(
    "purge",
    cls=Command,
    examples=[
        "lorarl purge out/sums",
        "lorarl purge job.yaml --set metadata.name=seed1 --yes",
        "lorarl purge job.yaml --until 2030-01-31T12:00:00Z",
    ],
)
@click.argument("job", metavar="RUN|FILE")
@options.overrides
@click.option("--yes", is_flag=True, help="Do not ask. Without a terminal, nothing is asked.")
@click.option(
    "--until",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%SZ"]),
    envvar="LORARL_PURGE_UNTIL",
    help="Stop deleting at this time (UTC) and keep what is left.",
)
@click.option(
    "--summary",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="LORARL_PURGE_SUMMARY",
    help="Write what was done to this file too.",
)
def command(job: str, overrides: tuple[str, ...], yes: bool, until: datetime | None, summary: Path | None) -> None:
    """Delete a job's checkpoints, adapters and records from its store, and nothing else.

    The job is that of a run, by its folder or its job's name under out/, or that of a manifest's file. The run's own
    folder, with its report, stays.
    """
    from lorarl_api.load import load_job
    from lorarl_trainer.errors import FencedError
    from lorarl_trainer.pods.purge import outlook, purge
    from lorarl_trainer.progress.metrics_file import read_summary
    from lorarl_trainer.progress.runs import run_folder

    run = None if Path(job).is_file() else run_folder(job)
    found = load_job(str(read_summary(run, ["manifest"])["manifest"]) if run else Path(job), overrides, READS)
    try:
        if until is None and (there := outlook(found)):
            print(there, file=sys.stderr, flush=True)
            if not yes and sys.stdin.isatty() and sys.stdout.isatty():
                click.confirm("Delete all of it?", abort=True)
        done = purge(found, until and until.replace(tzinfo=UTC))
    except FencedError as error:
        print(f"lorarl: {error}", file=sys.stderr)
        sys.exit(EXIT_NOT_OURS)
    print(done)
    if summary:
        summary.write_text(done, encoding="utf-8")
