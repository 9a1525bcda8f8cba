"""A TLS proxy before the API server: a test sees each request of one client, and fails it as networks and servers do.

with api_proxy(cluster) as proxy:
    proxy.intercept = strike              # async (Call) -> StreamResponse; without it everything is passed on
    kubeconfig = proxy.kubeconfig(cluster, "name", token)
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from support.cluster.control_plane import Cluster
from support.serving import catch_all, serving

_OF_THE_CONNECTION = frozenset({"transfer-encoding", "connection", "content-length", "host", "keep-alive"})
_SKIP = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
_LONGEST_WATCH_SECONDS = 3600


class Call:
    """One request on its way, and what can be done with it."""

    def __init__(self, proxy: ApiProxy, request: web.Request, body: bytes) -> None:
        self._proxy, self._request, self.body = proxy, request, body
        self.method, self.path = request.method, request.path

    @property
    def watches(self) -> bool:
        return "watch=1" in self._request.query_string or "watch=true" in self._request.query_string

    @property
    def writes(self) -> bool:
        return self.method != "GET"

    async def forward(self) -> web.StreamResponse:
        """Pass it on, and the answer back; a watch as it comes."""
        return await self.stream() if self.watches else await self.fetch()

    async def fetch(self) -> web.Response:
        """Have the server do it; the whole answer, which no client has seen yet."""
        async with self._ask(60) as answer:
            return web.Response(status=answer.status, headers=_kept(answer), body=await answer.read())

    async def stream(
        self,
        *,
        silent_after: float | None = None,
        cut_after: float | None = None,
        silent_once: threading.Event | None = None,
    ) -> web.StreamResponse:
        """Pass a watch on. After so many seconds, or once an event is set, go silent or break the connection."""
        async with self._ask(_LONGEST_WATCH_SECONDS) as answer:
            response = web.StreamResponse(status=answer.status, headers=_kept(answer))
            await response.prepare(self._request)
            try:
                async with asyncio.timeout(silent_after if silent_after is not None else cut_after):
                    async for chunk in answer.content.iter_any():
                        if silent_once is None or not silent_once.is_set():
                            await response.write(chunk)
            except TimeoutError:
                if cut_after is not None:
                    return self.drop()
                await self._proxy.closing.wait()  # Until the client gives up, which cancels this.
        return response

    async def expired(self) -> web.StreamResponse:
        """A watch whose version the server has forgotten: 410 as an event of the watch."""
        event = {"type": "ERROR", "object": _status(410, "Expired", "too old resource version")}
        return web.Response(text=json.dumps(event) + "\n", content_type="application/json")

    def answer(self, status: int, reason: str, message: str, retry_after: int | None = None) -> web.Response:
        """Answer without asking the server."""
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        return web.json_response(_status(status, reason, message), status=status, headers=headers)

    async def hang(self, seconds: float) -> web.StreamResponse:
        """No answer for so long, and then a broken connection."""
        await asyncio.sleep(seconds)
        return self.drop()

    async def half(self) -> web.StreamResponse:
        """Have the server do it, and break the connection in the middle of the answer."""
        whole = await self.fetch()
        body = whole.body if isinstance(whole.body, bytes) else b""
        response = web.StreamResponse(status=whole.status, headers={"Content-Type": "application/json"})
        response.content_length = len(body)
        await response.prepare(self._request)
        await response.write(body[: len(body) // 2])
        return self.drop()

    def drop(self) -> web.StreamResponse:
        """Break the connection."""
        if self._request.transport is not None:
            self._request.transport.abort()
        return web.Response(status=500)

    def _ask(self, seconds: float) -> aiohttp.client._RequestContextManager:
        headers = {
            name: value for name, value in self._request.headers.items() if name.lower() not in _OF_THE_CONNECTION
        }
        url = self._proxy.upstream + self._request.raw_path
        timeout = aiohttp.ClientTimeout(total=seconds)
        return self._proxy.session.request(self.method, url, headers=headers, data=self.body or None, timeout=timeout)


Intercept = Callable[[Call], Awaitable[web.StreamResponse]]


class ApiProxy:
    """Passes everything on to the API server, but for what `intercept` does instead. It runs in its own thread."""

    def __init__(self, cluster: Cluster) -> None:
        self.upstream = cluster.url
        self.url = ""
        self.intercept: Intercept | None = None
        self._certificate = cluster.ca
        self.session: aiohttp.ClientSession
        self.closing = asyncio.Event()

    def kubeconfig(self, cluster: Cluster, name: str, token: str) -> Path:
        """A kubeconfig for a token that goes through the proxy, which has the server's own certificate."""
        path = cluster.write_kubeconfig(name, token)
        content = json.loads(path.read_text())
        content["clusters"][0]["cluster"]["server"] = self.url
        path.write_text(json.dumps(content))
        return path

    def application(self) -> web.Application:
        """What serves it."""
        made = catch_all(self._handle, self.closing)
        made.cleanup_ctx.append(self._to_the_server)
        return made

    async def _to_the_server(self, _: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(self._certificate)), limit=0)
        async with aiohttp.ClientSession(
            connector=connector, auto_decompress=False, skip_auto_headers=_SKIP
        ) as self.session:
            yield

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call = Call(self, request, await request.read())
        try:
            return await (self.intercept(call) if self.intercept is not None else call.forward())
        except (aiohttp.ClientError, ConnectionError):
            return call.drop()


@contextmanager
def api_proxy(cluster: Cluster) -> Iterator[ApiProxy]:
    """Run a proxy until the block ends."""
    proxy = ApiProxy(cluster)
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(cluster.ca, cluster.ca.with_suffix(".key"))
    # The API server, too, gives up what its client does not wait for any more.
    with serving(proxy.application(), tls=own, cancel_abandoned=True) as proxy.url:
        yield proxy


def _kept(answer: aiohttp.ClientResponse) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.lower() not in _OF_THE_CONNECTION}


def _status(code: int, reason: str, message: str) -> dict[str, object]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }
