"""`kubectl lorarl open`."""

from __future__ import annotations

import contextlib
import threading
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from lorarl_trainer.cli.help import Command
from lorarl_trainer.cli.kubectl import source
from lorarl_trainer.errors import LorarlError

FETCH_SECONDS = 20.0
"""How often the record is read again while the page is open."""


@click.command(
    "open",
    cls=Command,
    examples=["kubectl lorarl open gsm8k", "kubectl lorarl open --record s3://team/adapters/gsm8k"],
)
@click.argument("job", required=False)
@click.option("--port", type=click.IntRange(0, 65535), help="Port here.  [default: 8300, or the next free one]")
@click.option("--browser/--no-browser", default=True, help="Whether to open the page in the browser.")
@source.record
@source.cluster_flags
def command(
    job: str | None,
    port: int | None,
    browser: bool,
    uri: str | None,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
) -> None:
    """Show a job's report in the browser, with the curves of all its runs. It follows a job that trains.

    The page is served to this machine only. Ctrl-C ends it.
    """
    from lorarl_trainer.progress.serve import open_server

    found = source.find_source(job, uri, source.kubectl(namespace, context, kubeconfig))
    closed = threading.Event()
    with TemporaryDirectory(prefix="lorarl-") as temporary:
        folder = Path(temporary, found.name)
        found.record.fetch(folder)

        def follow() -> None:
            while not closed.wait(FETCH_SECONDS):
                with contextlib.suppress(LorarlError):  # the page stays as it is until the store answers again
                    found.record.fetch(folder)

        with open_server(folder, port) as server:
            address = f"http://127.0.0.1:{server.server_address[1]}/"
            print(f"{found.record.uri}: {address}  (Ctrl-C ends)", flush=True)
            threading.Thread(target=follow, daemon=True).start()
            if browser:
                webbrowser.open(address)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
            closed.set()
