"""`kubectl lorarl top`."""

from __future__ import annotations

from typing import Any

import click

from lorarl_trainer.cli.help import Command
from lorarl_trainer.cli.kubectl import source
from lorarl_trainer.cli.kubectl.api import JOBS

HEADING = ("NAME", "PHASE", "STEP", "REWARD", "EVAL", "TOKENS/S", "GPUS", "USEFUL", "LOST", "STARTUP", "RESTARTS")


@click.command("top", cls=Command, examples=["kubectl lorarl top", "kubectl lorarl top -A", "kubectl lorarl top gsm8k"])
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
@source.cluster_flags
def command(
    jobs: tuple[str, ...], all_namespaces: bool, namespace: str | None, context: str | None, kubeconfig: str | None
) -> None:
    """List jobs with their newest figures, and what became of their GPU-hours: useful, lost, or spent on starts."""
    from lorarl_trainer.progress.tables import table

    api = source.kubectl(namespace, context, kubeconfig, *(["--all-namespaces"] if all_namespaces else []))
    found = [api.job(name) for name in jobs] if jobs else api.get(JOBS)["items"]
    print(table([HEADING, *(line_of(job, with_namespace=all_namespaces) for job in found)]))


def line_of(job: dict[str, Any], *, with_namespace: bool) -> tuple[str, ...]:
    """Return a job in one line. What is not known is a dash."""
    about, status = job["metadata"], job.get("status") or {}
    metrics, seconds = status.get("metrics") or {}, status.get("gpuSeconds")
    hours = [f"{seconds[state] / 3600:.1f}h" if seconds else None for state in ("useful", "lost", "startup")]
    cells = (
        f"{about['namespace']}/{about['name']}" if with_namespace else about["name"],
        status.get("phase"),
        status.get("progress"),
        metrics.get("reward"),
        metrics.get("evalScore"),
        metrics.get("tokensPerSecond"),
        status.get("gpus"),
        *hours,
        status.get("restarts"),
    )
    return tuple("–" if cell is None else str(cell) for cell in cells)
