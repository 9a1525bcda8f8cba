"""`lorarl render`."""

from __future__ import annotations

from pathlib import Path

import click

from lorarl_trainer.cli import options
from lorarl_trainer.cli.help import Command


@click.command(
    "render",
    cls=Command,
    examples=[
        "lorarl render job.yaml --template template.yaml",
        "kubectl get clrjt gpu-pool -o yaml > template.yaml",
    ],
)
@click.argument("file", type=options.FILE)
@options.overrides
@click.option(
    "--template",
    type=options.FILE,
    help="File with the template.  [default: the one that spec.templateRef names, if it is in FILE too]",
)
def command(file: Path, overrides: tuple[str, ...], template: Path | None) -> None:
    """Print a job as its template completes it, which is what the operator creates pods from.

    What the template forbids and what is not valid is printed in place of it; then the exit code is 1.
    """
    from lorarl_api.render import render

    click.echo(render(file, template, overrides), nl=False)
