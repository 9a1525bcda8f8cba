"""The HTTP endpoints: /healthz and /readyz for the kubelet, /metrics for Prometheus.

Each connection answers one request and is then closed, so that none outlives a shutdown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

log = logging.getLogger(__name__)
_REQUEST_SECONDS = 5.0
_TEXT = "text/plain; charset=utf-8"

type Answer = tuple[int, str, bytes]
"""Status, content type, body."""
type Check = Callable[[], str | None]
"""Returns what is wrong, or None."""
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


def checked(check: Check) -> Callable[[], Answer]:
    """An endpoint that answers 200, or 503 with what is wrong."""

    def answer() -> Answer:
        wrong = check()
        return (200, _TEXT, b"ok\n") if wrong is None else (503, _TEXT, (wrong + "\n").encode())

    return answer


def metrics() -> Answer:
    """All metrics in Prometheus' text format."""
    return 200, CONTENT_TYPE_LATEST, generate_latest()


async def serve(port: int, endpoints: Mapping[str, Callable[[], Answer]], host: str | None = None) -> asyncio.Server:
    """Serve endpoints by path, by default on all addresses. The server is running when this returns.

    Raises:
        OSError: The port is taken.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)
                status, content_type, body = _answer(request, endpoints)
                lines = (
                    f"HTTP/1.1 {status} {_REASONS[status]}",
                    f"Content-Type: {content_type}",
                    f"Content-Length: {len(body)}",
                    "Connection: close",
                )
                head = "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"
                writer.write(head + (b"" if request[0] == b"HEAD" else body))
                await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # The client disconnected, or does not send HTTP.
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port)


def _answer(request: list[bytes], endpoints: Mapping[str, Callable[[], Answer]]) -> Answer:
    if len(request) < 3 or request[0] not in (b"GET", b"HEAD"):
        return 405, _TEXT, b"only GET is allowed\n"
    path = request[1].split(b"?", 1)[0].decode(errors="replace")
    endpoint = endpoints.get(path)
    if endpoint is None:
        return 404, _TEXT, f"got {path}, expected one of {', '.join(endpoints)}\n".encode()
    return endpoint()
