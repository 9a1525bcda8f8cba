"""`lorarl purge`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from lorarl_trainer.cli import options
from lorarl_trainer.cli.help import Command


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
def command(manifest: Path, until: datetime | None) -> None:
    """Delete all checkpoints and adapters of a manifest's job from its store."""
    from lorarl_api.load import load_job
    from lorarl_trainer.pods.purge import purge

    print(f"deleted {purge(load_job(manifest), until and until.replace(tzinfo=UTC))}")
