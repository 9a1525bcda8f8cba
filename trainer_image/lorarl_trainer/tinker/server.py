"""The routes of Tinker's API over HTTP. What they answer is decided in `service.py`."""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from lorarl_trainer.errors import LorarlError
from lorarl_trainer.servers.hosts import require_key
from lorarl_trainer.tinker import requests
from lorarl_trainer.tinker.promises import Reply
from lorarl_trainer.tinker.refusals import RefusedError
from lorarl_trainer.tinker.service import Service

KEY = "LORARL_TINKER_API_KEY"
"""Environment variable: what clients send as TINKER_API_KEY."""
_KEY_HEADER, _ONCE_HEADER = "X-API-Key", "X-Idempotency-Key"
_API = "/api/v1/"
_MOST_BYTES = 256 << 20
"""Of a request. Clients send 5 MB of data at a time."""
_KEPT_ANSWERS = 4096
_END_SECONDS = 1.0
# The defaults of the client, but for what would make requests arrive in another order, or compressed.
_CONFIG = {"parallel_fwdbwd_chunks": False, "proto_compress_fwdbwd": False}
type _Answer = Mapping[str, Any] | Reply
type _Handler = Callable[[web.Request], Awaitable[_Answer]]


@dataclass(frozen=True)
class Address:
    """Where the service listens, and the key that clients need; None for none."""

    host: str
    port: int
    key: str | None

    def require_key(self) -> None:
        """Refuse to be reached from other machines without a key.

        Raises:
            InputError: it names the option and the variable.
        """
        hint = f"Set {KEY} to a long random text that begins with tml-, which clients send as TINKER_API_KEY."
        require_key(self.host, self.key, KEY, hint)


class Server:
    """Serves a `Service`."""

    def __init__(self, service: Service, address: Address) -> None:
        """Serve nothing before `serving`."""
        self._service, self._address = service, address
        self._answers: dict[tuple[str, str], _Answer] = {}
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answer requests within the block.

        Raises:
            LorarlError: the address cannot be used.
        """
        app = web.Application(client_max_size=_MOST_BYTES)
        for path, handler in self._routes().items():
            method, _, name = path.partition(" ")
            app.router.add_route(method, _API + name, self._handled(handler))
        app.router.add_route("*", "/{path:.*}", self._handled(_unknown))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_END_SECONDS)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, self._address.host, self._address.port).start()
            except OSError as error:
                raise LorarlError(f"--host {self._address.host} --port {self._address.port}: {error}") from error
            self.url = f"http://{self._address.host}:{runner.addresses[0][1]}"
            yield
        finally:
            await runner.cleanup()

    def _routes(self) -> Mapping[str, _Handler]:
        service = self._service
        return {
            "GET healthz": _constant({"status": "ok"}),
            "POST client/config": _constant(_CONFIG),
            "POST client/dynamic_config": _constant({}),
            "POST telemetry": _constant({"status": "accepted"}),
            "GET get_server_capabilities": _asks(service.capabilities),
            "POST create_session": self._once(_json(requests.CreateSession, service.create_session)),
            "POST session_heartbeat": _json(requests.OfSession, service.heartbeat),
            "POST sessions/{id}/finish": self._finish,
            "POST create_model": _json(requests.CreateModel, service.create_model),
            "POST load_weights": self._once(_json(requests.Load, service.load)),
            "POST get_info": _json(requests.OfModel, service.info),
            "POST weights_info": _json(requests.WeightsInfo, service.weights_info),
            "POST forward_backward": self._forward_backward,
            "POST optim_step": self._once(_json(requests.OptimStep, service.optim_step)),
            "POST save_weights": self._once(_json(requests.Save, service.save)),
            "POST save_weights_for_sampler": self._once(_json(requests.Save, service.save_for_sampler)),
            "POST create_sampling_session": _json(requests.SamplingSession, service.create_sampler),
            "GET samplers/{id}": self._sampler,
            "POST asample": self._once(self._sample),
            "POST retrieve_future": self._retrieve,
        }

    def _handled(self, handler: _Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Return a handler that checks the key, and answers errors as the API does."""

        async def handle(request: web.Request) -> web.StreamResponse:
            key, given = self._address.key, request.headers.get(_KEY_HEADER, "")
            if key is not None and not hmac.compare_digest(key.encode(), given.encode()):
                return _refused(RefusedError(f"wrong key: set TINKER_API_KEY to what {KEY} is here", status=401))
            try:
                answer = await handler(request)
            except RefusedError as error:
                return _refused(error)
            except web.HTTPRequestEntityTooLarge:
                return _refused(RefusedError(f"the request has more than {_MOST_BYTES:,} bytes", status=413))
            except LorarlError as error:  # a store that cannot be reached; the client asks again
                return _refused(RefusedError(str(error), status=500))
            reply = answer if isinstance(answer, Reply) else Reply.of(answer)
            return web.Response(body=reply.content, content_type=reply.kind)

        return handle

    def _once(self, handler: _Handler) -> _Handler:
        """Return a handler that answers a request which comes again, by its key, as it did before."""

        async def handle(request: web.Request) -> _Answer:
            key = request.path, request.headers.get(_ONCE_HEADER, "")
            if (answer := self._answers.get(key)) is None:
                answer = await handler(request)
                if key[1]:
                    self._answers[key] = answer
                    if len(self._answers) > _KEPT_ANSWERS:
                        del self._answers[next(iter(self._answers))]
            return answer

        return handle

    async def _finish(self, request: web.Request) -> _Answer:
        self._service.finish(request.match_info["id"])
        return {}

    async def _forward_backward(self, request: web.Request) -> _Answer:
        return self._service.forward_backward(await request.read())

    async def _sampler(self, request: web.Request) -> _Answer:
        return self._service.sampler(request.match_info["id"])

    async def _sample(self, request: web.Request) -> _Answer:
        asked = requests.read(requests.Sample, await request.read())
        return self._service.sample(asked, request.headers.get(_ONCE_HEADER, ""))

    async def _retrieve(self, request: web.Request) -> _Answer:
        asked = requests.read(requests.Retrieve, await request.read())
        reply = await self._service.promises.result(asked.request_id)
        return reply or {"type": "try_again", "request_id": asked.request_id, "queue_state": "active"}


def _json[Asked: requests.Request](kind: type[Asked], answer: Callable[[Asked], Mapping[str, Any]]) -> _Handler:
    async def handle(request: web.Request) -> _Answer:
        return answer(requests.read(kind, await request.read()))

    return handle


def _asks(answer: Callable[[], Mapping[str, Any]]) -> _Handler:
    async def handle(request: web.Request) -> _Answer:
        del request
        return answer()

    return handle


def _constant(answer: Mapping[str, Any]) -> _Handler:
    return _asks(lambda: answer)


async def _unknown(request: web.Request) -> _Answer:
    raise RefusedError(f"{request.method} {request.path} is not served here; docs/tinker.md lists what is", status=404)


def _refused(error: RefusedError) -> web.Response:
    return web.json_response({"detail": str(error)}, status=error.status)
