"""A judge and a reward model over HTTP that do what completions say: a real server, in a thread of the test's."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Server:
    """What the server saw.

    A completion is a list of commands with a comma between them, one for each request about it; the last one repeats.
    A number is a score. `500` to `599`, `429`, `404`, `401` are statuses, `hang` never answers, `drop` closes the
    connection, and anything else is what a judge writes.
    """

    port: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: Counter[str] = field(default_factory=Counter)
    connections: set[web.RequestHandler[web.Request]] = field(default_factory=set)
    at_a_time: int = 0
    most_at_a_time: int = 0
    release: asyncio.Event = field(default_factory=asyncio.Event)
    wait_for: int = 0
    _left: dict[str, deque[str]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.paths[request.path] += 1
        self.connections.add(request.protocol)
        self.at_a_time += 1
        self.most_at_a_time = max(self.most_at_a_time, self.at_a_time)
        try:
            if self.wait_for:
                if self.at_a_time >= self.wait_for:
                    self.release.set()
                await self.release.wait()
            return await self._obey(request, body)
        finally:
            self.at_a_time -= 1

    async def _obey(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        text = body["messages"][-1]["content"]
        left = self._left.setdefault(text, deque(text.rpartition("judge:")[2].split(",")))
        command = left.popleft() if len(left) > 1 else left[0]
        if command == "hang":
            await asyncio.sleep(3600)
        if command == "drop":
            assert request.transport is not None
            request.transport.abort()
        if command in ("401", "404", "429", "500", "503"):
            return web.Response(status=int(command), text=f"status {command}", headers={"Retry-After": "0"})
        if command == "html":
            return web.Response(text="<html>")
        if command == "deep":
            return web.Response(text="[" * 100_000)
        if command == "other":
            return web.json_response({"choices": []})
        if request.path == "/v1/chat/completions":
            said = f"Fine.\nScore: {command}" if command.lstrip("-").isdigit() else command
            return web.json_response({"choices": [{"message": {"content": said}}]})
        scores = json.loads(command.replace(";", ","))
        return web.json_response({"data": [{"probs": scores, "data": scores}]})


class RunningServer:
    """The server in its thread."""

    def __init__(self) -> None:
        self.saw = Server()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._started.wait()

    def _run(self) -> None:
        async def start() -> web.AppRunner:
            app = web.Application()
            app.router.add_post("/{path:.*}", self.saw.answer)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.saw.port = runner.addresses[0][1]
            return runner

        runner = self._loop.run_until_complete(start())
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
