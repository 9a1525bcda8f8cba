"""`lorarl render`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lorarl_trainer.cli import options
from lorarl_trainer.cli.help import Command


@click.command(
    "render",
    cls=Command,
    examples=[
        "lorarl render job.yaml --template template.yaml",
        "lorarl render job.yaml --gpu-memory 141",
        "lorarl render schedule.yaml",
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
@options.gpu_memory
def command(file: Path, overrides: tuple[str, ...], template: Path | None, gpu_memory: float | None) -> None:
    """Print a job as its template completes it, which is what the operator creates pods from.

    Of a LoRARLSchedule, that is its next job. `lorarl run --dry-run` shows what such a job would do.

    What the template forbids and what is not valid is printed in place of it; then the exit code is 1. If the base
    model is on this machine, how the job would run and the memory that takes go to the standard error.
    """
    from lorarl_api.load import load_job
    from lorarl_api.render import render
    from lorarl_trainer.install.locks import installed_flavour

    text = render(file, template, overrides)
    click.echo(text, nl=False)
    if installed_flavour() is None:  # the plan needs the trainer's packages
        return
    from lorarl_trainer.dry_run.local_model import judge_local_model

    fault, known = judge_local_model(load_job(text), gpu_memory, in_full=True)
    if said := fault or known:
        click.echo(f"{file}: {said}", err=True)
    sys.exit(1 if fault else 0)
