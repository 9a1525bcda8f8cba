"""The HTTP server of the endpoint. It finds the episode of a request by its key."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from aiohttp import web

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import LorarlError
from lorarl_trainer.rewards.environment.environment import LOOPBACK
from lorarl_trainer.rollout.endpoint import replies, response_replies
from lorarl_trainer.rollout.endpoint.conversation import Asked, Conversation
from lorarl_trainer.rollout.endpoint.replies import Turn
from lorarl_trainer.rollout.endpoint.requests import (
    RefusedError,
    TokensRequest,
    read_chat,
    read_tokens,
    unknown_path,
)
from lorarl_trainer.rollout.endpoint.response_requests import read_response

_MOST_BYTES = 64 << 20
"""Of a request."""
_END_SECONDS = 1.0
_SESSION = "X-Session-ID"
"""Names which part of an agent a request is of."""
type _Handler = Callable[[web.Request, Conversation], Awaitable[web.StreamResponse]]


class Endpoint:
    """Serves the model to the agents of a job's episodes, each of which has its own key."""

    def __init__(self, spec: LoRARLJobSpec, vocabulary_size: int, host: str = LOOPBACK) -> None:
        """Serve nothing before `serving`. `vocabulary_size`: tokens that the model knows. `host`: of this machine."""
        self._spec, self._vocabulary_size, self._host = spec, vocabulary_size, host
        self._conversations: dict[str, Conversation] = {}
        self._port = 0

    @property
    def base_url(self) -> str:
        """The root of OpenAI's API."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self._port}/v1"

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answer requests within the block.

        Raises:
            LorarlError: this machine has no port for it.
        """
        app = web.Application(client_max_size=_MOST_BYTES)
        app.router.add_post("/v1/chat/completions", self._handled(self._chat))
        app.router.add_post("/v1/responses", self._handled(self._responses))
        app.router.add_post("/inference/v1/generate", self._handled(self._generate))
        app.router.add_get("/v1/models", self._handled(self._models))
        app.router.add_route("*", "/{path:.*}", self._handled(_unknown))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_END_SECONDS)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, self._host, 0).start()
            except OSError as error:
                raise LorarlError(f"no server for the calls of spec.environment on {self._host}: {error}") from error
            self._port = runner.addresses[0][1]
            yield
        finally:
            await runner.cleanup()

    @contextlib.contextmanager
    def episode(self, conversation: Conversation) -> Iterator[str]:
        """Take requests of an episode within the block. Yields its key."""
        key = f"lorarl-{secrets.token_urlsafe(24)}"
        self._conversations[key] = conversation
        try:
            yield key
        finally:
            del self._conversations[key]

    def _handled(self, handler: _Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Return a handler that finds the episode, and answers errors in OpenAI's form."""

        async def handle(request: web.Request) -> web.StreamResponse:
            if (conversation := self._conversations.get(_key(request.headers))) is None:
                return _refused(
                    RefusedError(
                        "Wrong key: use llm.api_key, which is of one episode", status=401, code="invalid_api_key"
                    )
                )
            try:
                return await handler(request, conversation)
            except RefusedError as error:
                return _refused(conversation.refused(error))
            except LorarlError as error:  # it ends the run, see `Conversation.end`
                return _refused(RefusedError(str(error), status=500, code="internal_error"))

        return handle

    async def _chat(self, request: web.Request, conversation: Conversation) -> web.StreamResponse:
        asked = read_chat(await _body(request), self._spec.rollout)
        turn = await _answered(request, conversation, asked)
        if asked.stream:
            chunks = map(json.dumps, replies.chunks(turn, asked, int(time.time())))
            return await _streamed(request, [f"data: {chunk}\n\n" for chunk in (*chunks, "[DONE]")])
        return web.json_response(replies.completion(turn, asked, int(time.time())))

    async def _responses(self, request: web.Request, conversation: Conversation) -> web.StreamResponse:
        asked, rollout = read_response(await _body(request), self._spec.rollout), self._spec.rollout
        turn = await _answered(request, conversation, asked)
        if asked.stream:
            events = response_replies.events(turn, asked, rollout, int(time.time()))
            return await _streamed(request, [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events])
        return web.json_response(response_replies.response(turn, asked, rollout, int(time.time())))

    async def _generate(self, request: web.Request, conversation: Conversation) -> web.StreamResponse:
        asked: TokensRequest = read_tokens(await _body(request), self._spec.rollout, self._vocabulary_size)
        return web.json_response(replies.generated(await _answered(request, conversation, asked)))

    async def _models(self, request: web.Request, conversation: Conversation) -> web.StreamResponse:
        rollout = self._spec.rollout
        return web.json_response(
            replies.models(rollout.max_prompt_tokens + rollout.max_response_tokens, int(time.time()))
        )


async def _answered(request: web.Request, conversation: Conversation, asked: Asked) -> Turn:
    return await conversation.answer(asked, request.headers.get(_SESSION, ""), lambda: _is_gone(request))


def _key(headers: Mapping[str, str]) -> str:
    """Return the key of a request. Clients of other APIs send it in their own header, and read why they fail."""
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key") or headers.get("api-key", "")


async def _unknown(request: web.Request, conversation: Conversation) -> web.StreamResponse:
    raise unknown_path(request.method, request.path)


async def _body(request: web.Request) -> Any:
    try:
        return json.loads(await request.text())
    except web.HTTPRequestEntityTooLarge as error:
        raise RefusedError(f"The request has more than {_MOST_BYTES:,} bytes", status=413, code="too_large") from error
    except (ValueError, RecursionError, LookupError, web.RequestPayloadError) as error:
        raise RefusedError(f"The body is no JSON: {error}") from error


async def _streamed(request: web.Request, events: Sequence[str]) -> web.StreamResponse:
    """Send server-sent events."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    with contextlib.suppress(ConnectionError):  # the client has gone, and the turn is made
        await response.prepare(request)
        for event in events:
            await response.write(event.encode())
        await response.write_eof()
    return response


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _refused(error: RefusedError) -> web.Response:
    return web.json_response(replies.error(error), status=error.status)
