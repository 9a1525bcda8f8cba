"""`kubectl lorarl why`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from lorarl_trainer.cli.help import Command
from lorarl_trainer.cli.kubectl import source
from lorarl_trainer.errors import LorarlError

if TYPE_CHECKING:
    from lorarl_trainer.record.reader import RunHistory

SHOWN_EVENTS = 5
LOG_LINES = 15
SHORT = 100
"""Characters of a message in a line of the table."""


@click.command(
    "why",
    cls=Command,
    examples=["kubectl lorarl why gsm8k", "kubectl lorarl why --record s3://team/adapters/gsm8k"],
)
@click.argument("job", required=False)
@source.record
@source.cluster_flags
def command(
    job: str | None, uri: str | None, namespace: str | None, context: str | None, kubeconfig: str | None
) -> None:
    """Say why a job waits, restarted or failed: its conditions, its Events, how each run ended, the end of its log."""
    api = source.kubectl(namespace, context, kubeconfig)
    if uri is None and job is not None:
        print("\n".join([*status_lines(api.job(job)), *(f"  {text}" for text in api.warnings(job)[-SHOWN_EVENTS:])]))
    try:
        found = source.find_source(job, uri, api)
        history = found.record.history()
    except LorarlError as error:
        if uri is not None or job is None:
            raise
        print(f"\n{error}")  # the status may say enough
        return
    print(f"\nRecord  {found.record.uri}\n{runs_table(history)}")
    print("\n".join(details(history[-1])))
    if history[-1].state != "succeeded" and (log := main_log(history[-1])):
        end = found.record.read(history[-1], log).decode(errors="replace").splitlines()[-LOG_LINES:]
        print("\n".join([f"\nThe end of {log}:", *(f"  {line}" for line in end)]))


def status_lines(job: dict[str, Any]) -> list[str]:
    """Return phase, progress and conditions of a LoRARLJob."""
    status = job.get("status") or {}
    lines = [f"{job['metadata']['name']}  {status.get('phase', 'Pending')}  step {status.get('progress', 'none')}"]
    lines += [
        f"  {condition['type']}={condition['status']}  {condition['reason']}: {condition['message']}"
        for condition in status.get("conditions", ())
    ]
    if failure := status.get("failure"):
        lines.append(f"  attempt {failure.get('attempt', '?')} failed: {failure['reason']}: {failure['message']}")
    return lines


def runs_table(history: Sequence[RunHistory]) -> str:
    """Return a table with a line for each run."""
    from lorarl_trainer.progress.tables import table

    rows = [
        (
            run.name,
            str(run.run.attempt or "–"),
            run.run.started_at,
            run.run.host.partition(",")[0],
            _steps(run),
            run.state,
            _short(run),
        )
        for run in history
    ]
    return table([("RUN", "ATTEMPT", "STARTED", "HOST", "STEPS", "STATE", "WHY"), *rows])


def details(run: RunHistory) -> list[str]:
    """Return the whole message and the warnings of a run."""
    lines = [f"\nRun {run.name} {run.state}: {run.reason}: {run.message}"] if run.message else []
    return lines + [f"  warning: {text}" for text in run.warnings]


def main_log(run: RunHistory) -> str | None:
    """Return the driver's log of a run, or else the first of its logs; None if it has none."""
    logs = [path for path in run.files if path.startswith("logs/")]
    return next((path for path in logs if path == "logs/driver.log"), next(iter(logs), None))


def _steps(run: RunHistory) -> str:
    return f"{run.resumed_from or 0} to {run.step}"


def _short(run: RunHistory) -> str:
    if run.state == "lost":
        return "it recorded no end: killed, or lost with its machine"
    text = f"{run.reason}: {run.message}" if run.reason else ""
    first = text.partition("\n")[0]
    return first if len(first) <= SHORT else f"{first[:SHORT]}..."
