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


@click.command(
    "purge",
    cls=Command,
    examples=[
        "lorarl purge job.yaml",
        "lorarl purge job.yaml --until 2030-01-31T12:00:00Z",
    ],
)
@click.argument("manifest", type=options.FILE)
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
def command(manifest: Path, until: datetime | None, summary: Path | None) -> None:
    """Delete a job's checkpoints, adapters and records from its store, and nothing else."""
    from lorarl_api.load import load_job
    from lorarl_trainer.errors import FencedError
    from lorarl_trainer.pods.purge import purge
    from lorarl_trainer.storage.masked import mask_output

    mask_output()
    try:
        done = purge(load_job(manifest), until and until.replace(tzinfo=UTC))
    except FencedError as error:
        print(f"lorarl: {error}", file=sys.stderr)
        sys.exit(EXIT_NOT_OURS)
    print(done)
    if summary:
        summary.write_text(done, encoding="utf-8")
