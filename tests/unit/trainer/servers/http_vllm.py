"""A server that answers like `vllm serve`, and fails when a test says so. Its model continues every prompt alike."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from support.serving import catch_all, serving

LOGPROB = -0.5
"""Of each token."""


@dataclass
class Vllm:
    """What the server has and saw.

    Attributes:
        adapters: those that are loaded, by name.
        generated: the prompts that it was asked to continue, with the adapter's name.
        off_by: what is added to its log-probabilities, in nats.
        ends_idle: whether it ends a connection at its second request, as a server does that found it idle for too long.
        slots: adapters that it generates with at a time, as its metrics say.
        held: whether it does not answer a generation by this adapter yet.
        most_adapters: that it had at a time.
        key: that requests for models and generation must carry; None for none. A refusal repeats what it got.
        before: is called with the number of a generation before it is answered; it may change the server.
    """

    adapters: dict[str, str] = field(default_factory=dict)
    generated: list[tuple[str, list[int]]] = field(default_factory=list)
    off_by: float = 0.0
    says: str | None = None
    longest: int = 1024
    down: bool = False
    hangs: bool = False
    refuses: bool = False
    ends_idle: bool = False
    slots: int = 1
    held: Callable[[str], bool] = lambda name: False
    most_adapters: int = 0
    key: str | None = None
    before: Callable[[int], None] = lambda number: None
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    used: list[asyncio.Transport | None] = field(default_factory=list)
    url: str = ""

    def fail_by_chance(self, stream: random.Random, share: float) -> None:
        """Hang up at such a share of generations, lose the adapters at as many, and sometimes answer wrongly."""

        def disturb(_: int) -> None:
            self.down = stream.random() < share
            if stream.random() < share:
                self.restart()
            self.off_by = 0.1 if stream.random() < 0.02 else 0.0

        self.before = disturb

    def restart(self) -> None:
        """Lose the adapters, as a server that was started again."""
        self.adapters.clear()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.ends_idle and request.transport in self.used:
            request.transport.abort()
        self.used.append(request.transport)
        if request.path == "/inference/v1/generate":
            self.before(len(self.generated))
        given = request.headers.get("Authorization", "")
        if self.key is not None and request.path.startswith(("/v1", "/inference")) and given != f"Bearer {self.key}":
            return _error(401, f"Unauthorized: {given}")
        if self.down:
            assert request.transport is not None
            request.transport.abort()
        if self.hangs:
            await self.closing.wait()
        if request.method == "GET":
            return self._told(request.path)
        body = await request.json()
        if request.path == "/inference/v1/generate":
            while self.held(body["model"]):
                await asyncio.sleep(0.005)
            return self._generate(body)
        return self._adapter(request.path, body)

    def _told(self, path: str) -> web.StreamResponse:
        if path == "/v1/models":
            return web.json_response({"data": self._cards()})
        labels = f'max_lora="{self.slots}",running_lora_adapters=""'
        return web.Response(text=f"vllm:lora_requests_info{{{labels}}} 1.0" if self.generated else "")

    def _adapter(self, path: str, body: dict[str, Any]) -> web.StreamResponse:
        name = body["lora_name"]
        if path == "/v1/load_lora_adapter":
            if self.refuses:
                return _error(500, "LoRA rank 32 is greater than max_lora_rank 16.")
            self.adapters[name] = body["lora_path"]
            self.most_adapters = max(self.most_adapters, len(self.adapters))
            return web.Response(text="Success")
        if self.adapters.pop(name, None) is None:
            return _error(404, f"The lora adapter '{name}' cannot be found.")
        return web.Response(text="Success")

    def _cards(self) -> list[dict[str, Any]]:
        base = {"id": "base", "root": "/base", "parent": None, "max_model_len": self.longest}
        return [base, *({"id": name, "root": path, "parent": "base"} for name, path in self.adapters.items())]

    def _generate(self, body: dict[str, Any]) -> web.StreamResponse:
        if body["model"] not in self.adapters:
            return _error(404, f"The model `{body['model']}` does not exist.")
        self.generated.append((body["model"], body["token_ids"]))
        content = [{"token": f"token_id:{token}", "logprob": LOGPROB + self.off_by} for token in (7, 8)]
        choice = {"token_ids": [7, 8], "finish_reason": "stop", "logprobs": {"content": content}}
        return web.json_response({"model": self.says or body["model"], "choices": [choice]})


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


@contextmanager
def serving_vllm(server: Vllm) -> Iterator[Vllm]:
    """Serve until the block ends."""
    with serving(catch_all(server.answer, server.closing), cancel_abandoned=True) as url:
        server.url = url
        yield server
