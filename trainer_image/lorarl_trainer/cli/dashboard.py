"""`lorarl dashboard`."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import click

from lorarl_trainer.cli.help import Command
from lorarl_trainer.errors import InputError


@click.command(
    "dashboard",
    cls=Command,
    examples=[
        "lorarl dashboard",
        "lorarl dashboard out /data/runs",
        "lorarl dashboard s3://team/adapters",
        "env LORARL_DASHBOARD_KEY=$(cat key) lorarl dashboard s3://team/adapters --host 0.0.0.0",
        "lorarl dashboard --cluster s3://team/adapters",
    ],
)
@click.argument("places", nargs=-1, metavar="[FOLDER|URI]...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Others need a key: LORARL_DASHBOARD_KEY.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="0 takes a free one.  [default: 8400, or the next free one]"
)
@click.option("--cluster", is_flag=True, help="List the LoRARLJobs of this pod's cluster, for those who may.")
@click.option("--namespace", "namespaces", multiple=True, metavar="NAME", help="With --cluster: only its jobs.")
def command(places: tuple[str, ...], host: str, port: int | None, cluster: bool, namespaces: tuple[str, ...]) -> None:
    """Show all runs of folders and stores on one page, live while they train.

    FOLDER has runs below it, by default out. URI is where jobs keep their checkpoints: s3://, gs://, az:// or file:,
    with the usual variables for its keys (AWS_ACCESS_KEY_ID, ...). Nothing is written there.

    The page is for reading only, and served to this machine alone. With --host, other machines need the key of the
    variable LORARL_DASHBOARD_KEY, which browsers ask for as a password. Ctrl-C ends it.

    With --cluster, the page lists LoRARLJobs of a cluster, and URIs are the stores with their records. The password is
    then a token of the cluster. The API server says whose it is, and which namespaces that user may see.
    """
    from lorarl_trainer.dashboard.cluster.serve import cluster_dashboard
    from lorarl_trainer.dashboard.serve import DEFAULT, KEY, Address, dashboard

    if namespaces and not cluster:
        hint = "Add --cluster, or leave --namespace out."
        raise InputError("--namespace", f"{namespaces[0]} without --cluster", "--cluster beside it", hint)
    address = Address(host, port, os.environ.get(KEY) or None)
    named = places or (() if cluster else (DEFAULT,))
    opened = cluster_dashboard(named, namespaces, address) if cluster else dashboard(named, address)
    with opened as server, _ended_by_signal():
        number = server.server_address[1]
        shown = f"[{host}]" if ":" in host else host
        what = ", ".join([*(["the cluster"] if cluster else []), *named])
        print(f"{what}: http://{shown}:{number}/  (Ctrl-C ends)", flush=True)
        if "SSH_CONNECTION" in os.environ:
            print(f"From your own machine: ssh -L {number}:127.0.0.1:{number} {os.uname().nodename}", flush=True)
        server.serve_forever()


@contextlib.contextmanager
def _ended_by_signal() -> Iterator[None]:
    """End at Ctrl-C, and at SIGTERM, which the kubelet sends: the first process of a container would ignore it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)
