"""A server that answers like `vllm serve`, and fails when a test says so. Its model continues every prompt alike."""

from __future__ import annotations

import asyncio
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
    before: Callable[[int], None] = lambda number: None
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    used: list[asyncio.Transport | None] = field(default_factory=list)
    url: str = ""

    def restart(self) -> None:
        """Lose the adapters, as a server that was started again."""
        self.adapters.clear()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.ends_idle and request.transport in self.used:
            request.transport.abort()
        self.used.append(request.transport)
        if request.path == "/inference/v1/generate":
            self.before(len(self.generated))
        if self.down:
            assert request.transport is not None
            request.transport.abort()
        if self.hangs:
            await self.closing.wait()
        if request.path == "/v1/models":
            return web.json_response({"data": self._cards()})
        body = await request.json()
        if request.path == "/inference/v1/generate":
            return self._generate(body)
        name = body["lora_name"]
        if request.path == "/v1/load_lora_adapter":
            if self.refuses:
                return _error(500, "LoRA rank 32 is greater than max_lora_rank 16.")
            self.adapters[name] = body["lora_path"]
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
