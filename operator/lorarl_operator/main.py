"""The command `lorarl-operator`."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import uuid
from dataclasses import dataclass

import click
from kubernetes.aio.config import ConfigException
from prometheus_client import REGISTRY

from lorarl_operator import logs, probes
from lorarl_operator.control.leader import LeaderElector
from lorarl_operator.decide.settings import NetworkAccess, Settings
from lorarl_operator.jobs_metrics import JobsCollector
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.lease import Lease


@dataclass(frozen=True)
class _Options:
    namespaces: tuple[str, ...]
    trainer_image: str
    lease_namespace: str
    lease_name: str
    metrics_port: int
    probes_port: int
    keep_head_seconds: int
    start_deadline_seconds: int
    partly_placed_seconds: int
    recovery_seconds: int
    cleanup_seconds: int
    network: NetworkAccess | None
    default_template: str
    kubeconfig: str | None


def _network(_context: click.Context, _option: click.Parameter, value: str) -> NetworkAccess | None:
    """Parse --job-network-policy.

    Raises:
        click.BadParameter: It is not as expected.
    """
    if not value:
        return None
    try:
        found = json.loads(value)
        sources, egress = found.pop("from", []), found.pop("egress", None)
        lists = [sources] if egress is None else [sources, egress]
        if found or not all(isinstance(each, list) and all(isinstance(one, dict) for one in each) for each in lists):
            raise ValueError("only `from` and `egress` are known, each a list of mappings")
    except (ValueError, AttributeError, TypeError) as error:
        raise click.BadParameter(
            f'got {value!r}, expected JSON such as {{"from": [], "egress": []}}: {error}'
        ) from error
    return NetworkAccess(tuple(sources), None if egress is None else tuple(egress))


@click.command(context_settings={"auto_envvar_prefix": "LORARL", "show_default": True})
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    envvar=["LORARL_NAMESPACE", "LORARL_NAMESPACES"],
    help="Serve only this namespace (repeatable). By default all namespaces are served.",
)
@click.option("--trainer-image", required=True, help="Image for jobs without spec.cluster.image.")
@click.option("--lease-namespace", required=True, help="Namespace of the lease, which says which replica leads.")
@click.option("--lease-name", default="lorarl-operator", help="Name of the lease.")
@click.option("--metrics-port", default=8080, type=click.IntRange(1, 65535), help="Port of /metrics.")
@click.option("--probes-port", default=8081, type=click.IntRange(1, 65535), help="Port of /healthz and /readyz.")
@click.option(
    "--keep-head-seconds",
    default=600,
    type=click.IntRange(0),
    help="How long the head pod of a finished job stays, for its logs.",
)
@click.option(
    "--start-deadline-seconds",
    default=7200,
    type=click.IntRange(0),
    help="How long an attempt of a job without startDeadlineSeconds may hold all its machines before it runs. "
    "0: no limit.",
)
@click.option(
    "--partly-placed-seconds",
    default=900,
    type=click.IntRange(0),
    help="How long an attempt outside a queue may hold some of its machines while no node has room for its other pods. "
    "0: without limit.",
)
@click.option(
    "--recovery-seconds",
    default=600,
    type=click.IntRange(0),
    help="How long an attempt may wait for lost worker pods to be replaced, before the next attempt takes its place. "
    "0: it takes its place at once.",
)
@click.option(
    "--cleanup-seconds",
    default=900,
    type=click.IntRange(1),
    help="How long the removal of a deleted job's checkpoints may take.",
)
@click.option(
    "--job-network-policy",
    default="{}",
    callback=_network,
    help="What the NetworkPolicy of each job allows beside connections between its pods, as JSON: `from` and `egress` "
    "of a NetworkPolicy. Without `egress` it allows all outgoing connections. Empty: jobs get no policy.",
)
@click.option(
    "--default-template",
    default="",
    help="Name of the ClusterLoRARLJobTemplate for jobs without spec.templateRef.",
)
@click.option(
    "--log-format",
    default="text",
    type=click.Choice(["text", "json"]),
    help="text for people, json for log collectors.",
)
@click.option(
    "--log-level",
    default="info",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Lowest level to log.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True),
    help="Needed outside a cluster. Inside, the pod's service account is used.",
)
def main(
    namespaces: tuple[str, ...],
    trainer_image: str,
    lease_namespace: str,
    lease_name: str,
    metrics_port: int,
    probes_port: int,
    keep_head_seconds: int,
    start_deadline_seconds: int,
    partly_placed_seconds: int,
    recovery_seconds: int,
    cleanup_seconds: int,
    job_network_policy: NetworkAccess | None,
    default_template: str,
    log_format: str,
    log_level: str,
    kubeconfig: str | None,
) -> None:
    """Watch LoRARLJobs and create a RayJob for each attempt.

    Several replicas may run: one leads, the others stand by. Each option can also be set as LORARL_<OPTION>.
    """
    logs.set_up(log_format, log_level)
    options = _Options(
        namespaces=namespaces,
        trainer_image=trainer_image,
        lease_namespace=lease_namespace,
        lease_name=lease_name,
        metrics_port=metrics_port,
        probes_port=probes_port,
        keep_head_seconds=keep_head_seconds,
        start_deadline_seconds=start_deadline_seconds,
        partly_placed_seconds=partly_placed_seconds,
        recovery_seconds=recovery_seconds,
        cleanup_seconds=cleanup_seconds,
        network=job_network_policy,
        default_template=default_template,
        kubeconfig=kubeconfig,
    )
    try:
        sys.exit(asyncio.run(_run(options)))
    except ConfigException as error:
        raise click.ClickException(
            f"The API server is not configured ({error}). Run in a pod, or pass --kubeconfig FILE."
        ) from error
    except OSError as error:
        raise click.ClickException(f"--metrics-port and --probes-port: {error}") from error


async def _run(options: _Options) -> int:
    client = await Client.connect(options.kubeconfig)
    identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    lease = Lease(client, options.lease_namespace, options.lease_name, identity)
    settings = Settings(
        trainer_image=options.trainer_image,
        keep_head_seconds=options.keep_head_seconds,
        start_deadline_seconds=options.start_deadline_seconds,
        partly_placed_seconds=options.partly_placed_seconds,
        recovery_seconds=options.recovery_seconds,
        cleanup_seconds=options.cleanup_seconds,
        network=options.network,
        default_template=options.default_template,
    )
    elector = LeaderElector(client, lease, identity, options.namespaces, settings)
    REGISTRY.register(JobsCollector(elector.cache))
    health = {"/healthz": probes.checked(elector.alive), "/readyz": probes.checked(elector.ready)}
    servers = [
        await probes.serve(options.probes_port, health),
        await probes.serve(options.metrics_port, {"/metrics": probes.metrics}),
    ]
    try:
        return await elector.run()
    finally:
        for server in servers:
            server.close()
        await client.close()


if __name__ == "__main__":
    main()
