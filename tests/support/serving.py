"""An aiohttp application that serves on the loopback interface, from its own thread, until a block ends.

with serving(application) as url:
    ...
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from aiohttp import web

START_SECONDS = 10.0
STOP_SECONDS = 10.0
LARGEST_BODY_BYTES = 1 << 30


def catch_all(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]], closing: asyncio.Event
) -> web.Application:
    """An application in which `handle` answers everything. `closing` is set when it ends, for handlers that wait."""

    async def close(_: web.Application) -> None:
        closing.set()

    application = web.Application(client_max_size=LARGEST_BODY_BYTES)
    application.router.add_route("*", "/{path:.*}", handle)
    application.on_shutdown.append(close)
    return application


@contextmanager
def serving(
    application: web.Application, *, tls: ssl.SSLContext | None = None, cancel_abandoned: bool = False
) -> Iterator[str]:
    """Serve until the block ends; the URL.

    Args:
        application: What answers.
        tls: The server's certificate; without it the URL is http.
        cancel_abandoned: whether a request is cancelled when its client goes away; otherwise it runs to its end.
    """
    url: Future[str] = Future()
    stop = threading.Event()

    async def serve() -> None:
        runner = web.AppRunner(
            application, access_log=None, handler_cancellation=cancel_abandoned, shutdown_timeout=0.1
        )
        try:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            url.set_result(f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}")
            await asyncio.to_thread(stop.wait)
        finally:
            await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="serving", daemon=True)
    thread.start()
    try:
        yield url.result(START_SECONDS)
    finally:
        stop.set()
        thread.join(STOP_SECONDS)
