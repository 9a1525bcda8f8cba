"""`kubectl lorarl compare`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from lorarl_trainer.cli import options
from lorarl_trainer.cli.compare import print_comparison
from lorarl_trainer.cli.help import Command
from lorarl_trainer.cli.kubectl import source
from lorarl_trainer.errors import InputError


@click.command(
    "compare",
    cls=Command,
    examples=[
        "kubectl lorarl compare gsm8k gsm8k-rank64",
        "kubectl lorarl compare --record s3://team/adapters/gsm8k --record s3://team/adapters/gsm8k-rank64",
    ],
)
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
@click.option("--record", "uris", multiple=True, metavar="URI", help="A job's folder in a store. Can be repeated.")
@click.option(
    "--page", "page_path", type=options.FILE, default=Path("compare.html"), show_default=True, help="Page to write."
)
@source.cluster_flags
def command(
    jobs: tuple[str, ...],
    uris: tuple[str, ...],
    page_path: Path,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
) -> None:
    """Compare jobs: their results, and the settings that differ. Writes a page with overlaid curves."""
    api = source.kubectl(namespace, context, kubeconfig)
    named = [*((job, None) for job in jobs), *((None, uri) for uri in uris)]
    if len(named) < 2:
        raise InputError(
            "JOB", f"{len(named)} job(s)", "two or more, by name or --record", "`kubectl get lrj` lists them."
        )
    with TemporaryDirectory(prefix="lorarl-") as temporary:
        folders = []
        for number, (job, uri) in enumerate(named):
            found = source.find_source(job, uri, api)
            folder = Path(temporary, found.name)
            folders.append(folder if not folder.exists() else Path(temporary, f"{found.name}-{number}"))
            folders[-1].mkdir()
            found.record.fetch(folders[-1])
        print_comparison(folders, page_path)
