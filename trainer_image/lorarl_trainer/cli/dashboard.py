"""`lorarl dashboard`."""

from __future__ import annotations

import contextlib
import os

import click

from lorarl_trainer.cli.help import Command


@click.command(
    "dashboard",
    cls=Command,
    examples=[
        "lorarl dashboard",
        "lorarl dashboard out /data/runs",
        "lorarl dashboard s3://team/adapters",
        "env LORARL_DASHBOARD_KEY=$(cat key) lorarl dashboard s3://team/adapters --host 0.0.0.0",
    ],
)
@click.argument("places", nargs=-1, metavar="[FOLDER|URI]...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Others need a key: LORARL_DASHBOARD_KEY.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="0 takes a free one.  [default: 8400, or the next free one]"
)
def command(places: tuple[str, ...], host: str, port: int | None) -> None:
    """Show all runs of folders and stores on one page, live while they train.

    FOLDER has runs below it, by default out. URI is where jobs keep their checkpoints: s3://, gs://, az:// or file:,
    with the usual variables for its keys (AWS_ACCESS_KEY_ID, ...). Nothing is written there.

    The page is for reading only, and served to this machine alone. With --host, other machines need the key of the
    variable LORARL_DASHBOARD_KEY, which browsers ask for as a password. Ctrl-C ends it.
    """
    from lorarl_trainer.dashboard.serve import DEFAULT, KEY, Address, dashboard

    address = Address(host, port, os.environ.get(KEY) or None)
    with dashboard(places or (DEFAULT,), address) as server, contextlib.suppress(KeyboardInterrupt):
        number = server.server_address[1]
        shown = f"[{host}]" if ":" in host else host
        print(f"{', '.join(places or (DEFAULT,))}: http://{shown}:{number}/  (Ctrl-C ends)", flush=True)
        if "SSH_CONNECTION" in os.environ:
            print(f"From your own machine: ssh -L {number}:127.0.0.1:{number} {os.uname().nodename}", flush=True)
        server.serve_forever()
