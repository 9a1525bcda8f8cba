"""The command `lorarl-operator`."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import uuid
from dataclasses import dataclass, field
from typing import Any

import click
from kubernetes.aio.config import ConfigException
from prometheus_client import REGISTRY

from lorarl_operator import logs, probes
from lorarl_operator.control.leader import LeaderElector
from lorarl_operator.decide.settings import Settings, option
from lorarl_operator.jobs_metrics import JobsCollector
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.lease import Lease
from lorarl_operator.options import chosen, options_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """How this replica runs, beside how it decides."""

    namespaces: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "Serve only this namespace (repeatable). By default all namespaces are served.",
            flag="--namespace",
            multiple=True,
            envvar=["LORARL_NAMESPACE", "LORARL_NAMESPACES"],
        ),
    )
    lease_namespace: str = field(metadata=option("Namespace of the lease, which says which replica leads."))
    lease_name: str = field(default="lorarl-operator", metadata=option("Name of the lease."))
    metrics_port: int = field(default=8080, metadata=option("Port of /metrics.", least=1, most=65535))
    probes_port: int = field(default=8081, metadata=option("Port of /healthz and /readyz.", least=1, most=65535))
    log_format: str = field(
        default="text", metadata=option("text for people, json for log collectors.", choices=["text", "json"])
    )
    log_level: str = field(
        default="info", metadata=option("Lowest level to log.", choices=["debug", "info", "warning", "error"])
    )
    kubeconfig: str | None = field(
        default=None,
        metadata=option(
            "Needed outside a cluster. Inside, the pod's service account is used.", type=click.Path(exists=True)
        ),
    )


@click.command(context_settings={"auto_envvar_prefix": "LORARL", "show_default": True})
@options_of(Settings, Process)
def main(**values: Any) -> None:
    """Watch LoRARLJobs and create a RayJob for each attempt.

    Several replicas may run: one leads, the others stand by. Each option can also be set as LORARL_<OPTION>.
    """
    process = chosen(Process, values)
    logs.set_up(process.log_format, process.log_level)
    try:
        sys.exit(asyncio.run(_run(process, chosen(Settings, values))))
    except ConfigException as error:
        raise click.ClickException(
            f"The API server is not configured ({error}). Run in a pod, or pass --kubeconfig FILE."
        ) from error
    except OSError as error:
        raise click.ClickException(f"--metrics-port and --probes-port: {error}") from error


async def _run(process: Process, settings: Settings) -> int:
    client = await Client.connect(process.kubeconfig)
    identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    lease = Lease(client, process.lease_namespace, process.lease_name, identity)
    elector = LeaderElector(client, lease, identity, process.namespaces, settings)
    REGISTRY.register(JobsCollector(elector.cache))
    health = {"/healthz": probes.checked(elector.alive), "/readyz": probes.checked(elector.ready)}
    servers = [
        await probes.serve(process.probes_port, health),
        await probes.serve(process.metrics_port, {"/metrics": probes.metrics}),
    ]
    try:
        return await elector.run()
    finally:
        for server in servers:
            server.close()
        await client.close()


if __name__ == "__main__":
    main()
