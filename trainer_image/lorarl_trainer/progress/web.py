"""Pages over HTTP, for reading only: who may ask, what is sent again, and what headers an answer has."""

from __future__ import annotations

import base64
import hmac
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from lorarl_trainer.errors import InputError

HOST = "127.0.0.1"
PORTS = 20
"""How many ports are tried from the first one on, so that the address of a page that is open stays the same."""
QUIET_SECONDS = 30.0
"""A connection that sends nothing for so long is closed."""
HTML, JSON = "text/html; charset=utf-8", "application/json"
ASKS = {"WWW-Authenticate": 'Basic realm="lorarl"'}
"""The header with which a browser asks for a password."""
_HEADERS = {
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A body with its type; `etag`, if there is one, changes with the body."""

    body: bytes
    kind: str = HTML
    etag: str = ""
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


type Query = Mapping[str, list[str]]
type Respond = Callable[[str, Query], Answer | None]
"""From a path and its query to an answer; None for a path that is not there."""
type RespondTo = Callable[[str, Query, Mapping[str, str]], Answer | None]
"""The same for who asks, which the request's headers say. Their names are in the form `If-None-Match`."""


def open_server(
    respond: Respond, first_port: int, port: int | None, *, host: str = HOST, key: str | None = None
) -> ThreadingHTTPServer:
    """Return a server of pages. It answers once it serves.

    Args:
        respond: makes the answers, from several threads.
        first_port: tried first, then the next ones.
        port: the one to use instead; 0 takes a free one.
        host: address to listen on.
        key: what every request must carry; None for none. Then names other than this machine's own are refused.

    Raises:
        InputError: the port cannot be used.
    """
    return listen(_with_key(respond, key), first_port, port, host=host)


def listen(respond: RespondTo, first_port: int, port: int | None, *, host: str = HOST) -> ThreadingHTTPServer:
    """Return a server of pages that decides itself who may ask. It answers once it serves.

    The arguments and errors are those of `open_server`.
    """
    for number in [port] if port is not None else [*range(first_port, first_port + PORTS), 0]:
        try:
            return _Server((host, number), _handler(respond))
        except OSError as error:
            reason = error.strerror
    got = f"{port}, which cannot be used at {host} ({reason})"
    raise InputError("--port", got, "a free port", "Leave --port out.")


class _Server(ThreadingHTTPServer):
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a browser that has gone away."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            traceback.print_exc()


def may_ask(headers: Mapping[str, str], key: str | None) -> HTTPStatus | None:
    """Return why a request is refused; None if it is not.

    A key comes as a browser sends a password, with any user name, or as a bearer token. Without a key only this machine
    is served. A page elsewhere may resolve its own name to this address, but its requests carry that name.
    """
    if key is None:
        name = headers.get("Host", "")
        name = name[: name.find("]") + 1] if name.startswith("[") else name.partition(":")[0]
        return None if name in (HOST, "localhost", "[::1]") else HTTPStatus.FORBIDDEN
    return None if hmac.compare_digest(given_secret(headers).encode(), key.encode()) else HTTPStatus.UNAUTHORIZED


def given_secret(headers: Mapping[str, str]) -> str:
    """Return what a request carries as its password, with any user name, or as its bearer token; empty if neither."""
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(given, validate=True).decode().partition(":")[2]
        except ValueError:
            return ""
    return given.strip() if scheme.lower() == "bearer" else ""


def _with_key(respond: Respond, key: str | None) -> RespondTo:
    def respond_to(path: str, query: Query, headers: Mapping[str, str]) -> Answer | None:
        if status := may_ask(headers, key):
            more = ASKS if status == HTTPStatus.UNAUTHORIZED else {}
            return Answer(status.phrase.encode(), "text/plain", status=status, headers=more)
        return respond(path, query)

    return respond_to


def _handler(respond: RespondTo) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = QUIET_SECONDS

        def do_GET(self) -> None:
            """Answer with a page or data; with nothing but a status if the asker has this version."""
            # Proxies may write the names of headers in small letters.
            headers = {name.title(): value for name, value in self.headers.items()}
            self._send(_answer(respond, self.path, headers))

        def do_HEAD(self) -> None:
            """Answer as to GET, without the body."""
            self.do_GET()

        def _send(self, answer: Answer) -> None:
            same = bool(answer.etag) and self.headers.get("If-None-Match") == answer.etag
            self.send_response(HTTPStatus.NOT_MODIFIED if same else answer.status)
            for name, value in {**_HEADERS, **answer.headers}.items():
                self.send_header(name, value)
            if answer.etag:
                self.send_header("ETag", answer.etag)
            if not same:
                self.send_header("Content-Type", answer.kind)
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if not same and self.command != "HEAD":
                self.wfile.write(answer.body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing: a line every two seconds would bury the address."""

    return Handler


def _answer(respond: RespondTo, target: str, headers: Mapping[str, str]) -> Answer:
    path, _, text = target.partition("?")
    try:
        query = parse_qs(text, keep_blank_values=True, max_num_fields=1000)
        return respond(path, query, headers) or _plain(HTTPStatus.NOT_FOUND)
    except Exception:  # noqa: BLE001 - one page that fails must not end the others
        traceback.print_exc()
        return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)


def _plain(status: HTTPStatus) -> Answer:
    return Answer(status.phrase.encode(), "text/plain", status=status)
