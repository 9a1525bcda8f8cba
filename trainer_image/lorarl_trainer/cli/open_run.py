"""`lorarl open`."""

from __future__ import annotations

import contextlib
import os

import click

from lorarl_trainer.cli.help import Command


@click.command(
    "open",
    cls=Command,
    examples=["lorarl open sums", "lorarl open out/demo/run --port 9000"],
)
@click.argument("run")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port on this machine.  [default: 8300, or the next free one]"
)
def command(run: str, port: int | None) -> None:
    """Show a run's report in the browser, live while the run trains.

    RUN is a run's folder, or a job's name under out/. The page is served to this machine only. Ctrl-C ends it.
    """
    from lorarl_trainer.progress.runs import find_run
    from lorarl_trainer.progress.serve import open_server

    folder = find_run(run, lambda folder: print(f"{folder} is starting; the report follows.", flush=True))
    server = open_server(folder, port)
    number = server.server_address[1]
    print(f"{folder}: http://127.0.0.1:{number}/  (Ctrl-C ends)", flush=True)
    if "SSH_CONNECTION" in os.environ:
        print(f"From your own machine: ssh -L {number}:127.0.0.1:{number} {os.uname().nodename}", flush=True)
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
