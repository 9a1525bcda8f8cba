"""`lorarl upload`."""

from __future__ import annotations

from pathlib import Path

import click

from lorarl_trainer.cli import options
from lorarl_trainer.cli.help import Command


@click.command(
    "upload",
    cls=Command,
    examples=[
        "lorarl upload train.jsonl base/ s3://team/sums",
        "lorarl upload train.jsonl s3://team/sums --secret s3-keys",
    ],
)
@click.argument("sources", nargs=-1, required=True, type=options.FILE)
@click.argument("uri")
@click.option(
    "--secret",
    metavar="NAME",
    help="Secret with the store's keys, as in credentialsSecret of a manifest.  [default: keys in the environment]",
)
def command(sources: tuple[Path, ...], uri: str, secret: str | None) -> None:
    """Upload files and folders, such as a base model, to URI.

    URI is a folder in a store that the cluster's pods can read.
    """
    from lorarl_trainer.storage.upload import upload as upload_files

    for uploaded in upload_files(sources, uri, secret):
        print(uploaded)
