"""`kubectl lorarl logs`."""

from __future__ import annotations

import sys

import click

from lorarl_trainer.cli.help import Command
from lorarl_trainer.cli.kubectl import source
from lorarl_trainer.cli.kubectl.why import main_log
from lorarl_trainer.errors import InputError


@click.command(
    "logs",
    cls=Command,
    examples=[
        "kubectl lorarl logs gsm8k",
        "kubectl lorarl logs gsm8k --run 1 --tail 50",
        "kubectl lorarl logs --record s3://team/adapters/gsm8k",
    ],
)
@click.argument("job", required=False)
@source.run
@click.option("--file", "file", metavar="NAME", help="Which of the run's logs.  [default: driver.log]")
@click.option("--tail", type=click.IntRange(min=0), metavar="LINES", help="Print only the last lines.")
@source.record
@source.cluster_flags
def command(
    job: str | None,
    number: str | None,
    file: str | None,
    tail: int | None,
    uri: str | None,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
) -> None:
    """Print what a run's driver and workers printed, from its record. During a run it is a minute behind at most."""
    found = source.find_source(job, uri, source.kubectl(namespace, context, kubeconfig))
    run = source.one_run(found.record.history(), number)
    path = f"logs/{file}" if file else main_log(run)
    if path not in run.files:
        logs = ", ".join(name.removeprefix("logs/") for name in run.files if name.startswith("logs/"))
        raise InputError("--file", file or "none", f"a log of run {run.name}: {logs or 'it has none'}", "Choose one.")
    lines = found.record.read(run, str(path)).decode(errors="replace").splitlines(keepends=True)
    sys.stdout.writelines(lines if tail is None else lines[max(0, len(lines) - tail) :])
