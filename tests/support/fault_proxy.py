"""An HTTP proxy on the loopback interface that misbehaves on demand, in front of a real server.

    with fault_proxy(server.url) as proxy:
        proxy.answer(503, times=2, method="PUT")
        ...

Each fault strikes the next `times` requests whose method and path match, in the order in which faults were asked for.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from support.serving import catch_all, serving

FOREVER = 1_000_000
ERROR_BODY = (
    '<?xml version="1.0" encoding="UTF-8"?><Error><Code>Injected</Code><Message>injected by the proxy</Message></Error>'
)
Strike = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Fault:
    """What befalls the next `times` requests that match; `struck` are those that it befell already."""

    strike: Strike
    times: int
    method: str
    path: str
    struck: int = 0

    def takes(self, request: web.Request) -> bool:
        return (
            self.struck < self.times
            and re.fullmatch(self.method, request.method) is not None
            and re.search(self.path, request.path_qs) is not None
        )


@dataclass
class Hold:
    """A request stopped on its way to the server: `arrived` is set when it is there, `release` lets it through."""

    arrived: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        self.released.set()


class FaultProxy:
    """Forwards everything to `upstream` but for the faults asked for. Safe to use from any thread."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.url = ""
        self.requests: list[tuple[str, str]] = []
        self._faults: list[Fault] = []
        self._closing = asyncio.Event()

    def answer(
        self, status: int, *, times: int = 1, method: str = ".*", path: str = "", body: str = ERROR_BODY
    ) -> Fault:
        """Answer with `status` without asking the server."""

        async def strike(request: web.Request) -> web.StreamResponse:
            await request.read()
            return web.Response(status=status, text=body, content_type="application/xml")

        return self._add(strike, times, method, path)

    def hang(self, *, times: int = 1, method: str = ".*", path: str = "") -> Fault:
        """Take the request and never answer."""

        async def strike(request: web.Request) -> web.StreamResponse:
            await self._closing.wait()
            return web.Response(status=500)

        return self._add(strike, times, method, path)

    def drop(self, *, times: int = 1, method: str = ".*", path: str = "", after_forwarding: bool = False) -> Fault:
        """Break the connection: before the server sees the request, or after it has done what was asked."""

        async def strike(request: web.Request) -> web.StreamResponse:
            if after_forwarding:
                await self._forward(request)
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)

        return self._add(strike, times, method, path)

    def truncate(self, *, times: int = 1, method: str = "GET", path: str = "") -> Fault:
        """Send half of the server's answer, then break the connection."""

        async def strike(request: web.Request) -> web.StreamResponse:
            whole = await self._forward(request)
            body = whole.body if isinstance(whole.body, bytes) else b""
            half = web.StreamResponse(status=whole.status, headers=whole.headers)
            half.content_length = len(body)
            await half.prepare(request)
            await half.write(body[: len(body) // 2])
            if request.transport is not None:
                request.transport.close()
            return half

        return self._add(strike, times, method, path)

    def delay(self, seconds: float, *, times: int = 1, method: str = "PUT", path: str = "") -> Fault:
        """Forward the request only after `seconds`."""

        async def strike(request: web.Request) -> web.StreamResponse:
            await asyncio.sleep(seconds)
            return await self._forward(request)

        return self._add(strike, times, method, path)

    def hold(self, *, times: int = 1, method: str = "PUT", path: str = "") -> Hold:
        """Stop a request before the server sees it, until it is released."""
        hold = Hold()

        async def strike(request: web.Request) -> web.StreamResponse:
            hold.arrived.set()
            await asyncio.get_running_loop().run_in_executor(None, hold.released.wait)
            return await self._forward(request)

        self._add(strike, times, method, path)
        return hold

    def heal(self) -> None:
        """Forget all faults."""
        self._faults.clear()

    def application(self) -> web.Application:
        """What serves it."""
        return catch_all(self._handle, self._closing)

    def _add(self, strike: Strike, times: int, method: str, path: str) -> Fault:
        fault = Fault(strike, times, method, path)
        self._faults.append(fault)
        return fault

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        for fault in list(self._faults):
            if fault.takes(request):
                fault.struck += 1
                return await fault.strike(request)
        return await self._forward(request)

    async def _forward(self, request: web.Request) -> web.Response:
        # The request's signature covers its Host header, so all headers are passed as they came.
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("transfer-encoding", "connection")
        }
        body = await request.read()
        skip = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
        async with (
            aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=skip) as session,
            session.request(
                request.method, self.upstream + request.raw_path, headers=headers, data=body, allow_redirects=False
            ) as answer,
        ):
            kept = {
                name: value
                for name, value in answer.headers.items()
                if name.lower() not in ("transfer-encoding", "connection", "content-length")
            }
            content = await answer.read()
            response = web.Response(status=answer.status, headers=kept, body=content)
            if request.method == "HEAD" and "Content-Length" in answer.headers:
                response.headers["Content-Length"] = answer.headers["Content-Length"]
            return response


@contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """Run a proxy in front of `upstream` (as http://127.0.0.1:7070) until the block ends."""
    proxy = FaultProxy(upstream)
    with serving(proxy.application()) as proxy.url:
        yield proxy
