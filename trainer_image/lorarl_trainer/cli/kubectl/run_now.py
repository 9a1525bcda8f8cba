"""`kubectl lorarl run-now`."""

from __future__ import annotations

import time

import click

from lorarl_trainer.cli.help import Command
from lorarl_trainer.cli.kubectl import source

SCHEDULES = "lorarlschedules.lorarl.io"
_DIGITS = 10**7


@click.command("run-now", cls=Command, examples=["kubectl lorarl run-now nightly"])
@click.argument("schedule")
@source.cluster_flags
def command(schedule: str, namespace: str | None, context: str | None, kubeconfig: str | None) -> None:
    """Start a job of a LoRARLSchedule now, as `kubectl create job --from=cronjob/NAME` does for a CronJob.

    It continues from the same adapter as the next one would, and counts for `concurrencyPolicy` and the history.
    """
    from lorarl_api.schedules.manifest import ANNOTATION_BY_HAND, job_document, metadata_of

    api = source.kubectl(namespace, context, kubeconfig)
    found = api.get(SCHEDULES, schedule)
    spec = found["spec"]
    name = f"{schedule}-r{int(time.time()) % _DIGITS:07}"
    continues = spec.get("continueFrom", "none") != "none"
    adapter = (found.get("status") or {}).get("lastAdapter") or {}
    job = job_document(spec["template"]["spec"], name, adapter.get("uri") if continues else None)
    about = metadata_of(found["metadata"], spec["template"].get("metadata") or {}, name, {ANNOTATION_BY_HAND: "true"})
    api.create({**job, "metadata": about})
    print(f"LoRARLJob {name} is created.")
