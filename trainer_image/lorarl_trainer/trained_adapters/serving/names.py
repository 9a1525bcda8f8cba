"""What runs within vLLM's server: names of models that requests may use, and which loaded adapter each means.

The server takes it as `--middleware`. Only the standard library is imported, as this is vLLM's process.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

MIDDLEWARE = f"{__name__}.Names"
FILE, KEY = "LORARL_SERVED_NAMES", "LORARL_SERVING_KEY"
"""Environment variables of the server: the file with the names, and what loads and unloads adapters has to send."""
WITHHELD = "LORARL_WITHHELD_BASE"
"""Environment variable of the server: the base model's name, if others may not ask for it; see `OwnServer.start`."""
HEADER = "x-lorarl-serving-key"
_OURS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
_MODELS = "/v1/models"
_ONLY_TOKENS = ("/tokenize", "/detokenize")

_WITHHELD_MESSAGE = (
    "the base model is not served on a CPU: vLLM 0.26 would answer with an adapter's weights while others ask for one. "
    "Ask for an adapter. lorarl evaluate and lorarl chat compare base and adapter."
)

type _Message = MutableMapping[str, Any]
type _Receive = Callable[[], Awaitable[_Message]]
type _Send = Callable[[_Message], Awaitable[None]]
type _App = Callable[[_Message, _Receive, _Send], Awaitable[None]]


def write_names(file: Path, names: Mapping[str, str]) -> None:
    """Say which adapter each name means. A request sees the file before or after the change."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(names), encoding="utf-8")
    new.replace(file)


class Names:
    """Gives requests for a served name the adapter that it means now. Others may not load or unload any."""

    def __init__(self, app: _App) -> None:
        """Take the server's application, as ASGI has it."""
        self._app = app
        self._file, self._key, self._withheld = Path(os.environ[FILE]), os.environ[KEY], os.environ.get(WITHHELD)

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Pass a request on: https://asgi.readthedocs.io/en/latest/specs/www.html."""
        path, method = scope.get("path"), scope.get("method")
        if path in _OURS and not self._is_ours(scope):
            said = f"{path} is not served here: lorarl serve loads the adapters of its run itself"
            await _answer(send, 404, {"error": {"message": said, "code": 404}})
        elif method == "GET" and path == _MODELS:
            await self._app(scope, receive, self._listing(send))
        elif method == "POST" and path not in _OURS:
            body, ended = await _body(receive)
            if ended is None and path not in _ONLY_TOKENS and self._is_withheld(body) and not self._is_ours(scope):
                await _answer(send, 400, {"error": {"message": _WITHHELD_MESSAGE, "param": "model", "code": 400}})
            else:
                await self._app(*self._meant(scope, receive, body, ended), send)
        else:
            await self._app(scope, receive, send)

    def _is_ours(self, scope: _Message) -> bool:
        given = dict(scope["headers"]).get(HEADER.encode(), b"")
        return hmac.compare_digest(given, self._key.encode())

    def _names(self) -> dict[str, str]:
        return dict(json.loads(self._file.read_text(encoding="utf-8")))

    def _is_withheld(self, body: bytes) -> bool:
        """Whether a request asks for the base model, which vLLM also takes where none is named."""
        return self._withheld is not None and _model_of(body) in (None, "", self._withheld)

    def _meant(
        self, scope: _Message, receive: _Receive, body: bytes, ended: _Message | None
    ) -> tuple[_Message, _Receive]:
        """Return a request whose body names the loaded adapter that is meant."""
        if ended is None:
            body = renamed(body, self._names())
            length = b"content-length", str(len(body)).encode()
            scope = {**scope, "headers": [*(one for one in scope["headers"] if one[0] != length[0]), length]}
        messages = [ended or {"type": "http.request", "body": body, "more_body": False}]

        async def again() -> _Message:
            return messages.pop() if messages else await receive()

        return scope, again

    def _listing(self, send: _Send) -> _Send:
        """Return what sends the list of models with the served names in place of what is loaded."""
        start: _Message = {}
        parts: list[bytes] = []

        async def listed(message: _Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            parts.append(message.get("body", b""))
            if message.get("more_body"):
                return
            if start["status"] != 200:
                await send(start)
                await send({"type": "http.response.body", "body": b"".join(parts)})
                return
            await _answer(send, 200, listing(json.loads(b"".join(parts)), self._names()))

        return listed


def _model_of(body: bytes) -> Any:
    """Return the model that a request's body names; None without one."""
    try:
        asked = json.loads(body)
    except ValueError:
        return None
    return asked.get("model") if isinstance(asked, dict) else None


def renamed(body: bytes, names: Mapping[str, str]) -> bytes:
    """Return a request's body with the loaded adapter that its model means; any other body as it is."""
    try:
        asked = json.loads(body)
    except ValueError:
        return body
    if not isinstance(asked, dict) or not isinstance(model := asked.get("model"), str) or model not in names:
        return body
    return json.dumps({**asked, "model": names[model]}).encode()


def listing(answer: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the server's list of models: the base, and each served name with the card of the adapter that it means."""
    cards = {card["id"]: card for card in answer["data"]}
    bases = [card for card in answer["data"] if not card.get("parent")]
    served = [{**cards[loaded], "id": name} for name, loaded in names.items() if loaded in cards]
    return {**answer, "data": [*bases, *served]}


async def _body(receive: _Receive) -> tuple[bytes, _Message | None]:
    """Return a request's whole body; or the message that the client went away."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"", message
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts), None


async def _answer(send: _Send, status: int, content: Mapping[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
