"""What was promised to clients, and kept until they have it: a lost reply is asked for again.

A promise's id is made of the numbers that the client gave its request. So a request that comes twice has one promise.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lorarl_trainer.errors import LorarlError, in_one_line
from lorarl_trainer.tinker.refusals import GONE, RefusedError
from lorarl_trainer.tinker.wire import CONTENT_TYPE

POLL_SECONDS = 30.0
"""How long a client waits in one request for a result. Its own limit is 45 s."""
_KEPT = 1024
"""Results that are kept after a client has had them."""


@dataclass(frozen=True)
class Reply:
    """The body of an answer."""

    content: bytes
    kind: str = "application/json"

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Reply:
        """Return an object as JSON."""
        return cls(json.dumps(value).encode())

    @classmethod
    def message(cls, content: bytes) -> Reply:
        """Return a protobuf message."""
        return cls(content, CONTENT_TYPE)


def failed(error: str, category: Literal["user", "server"]) -> Reply:
    """Return the result of a request that failed."""
    return Reply.of({"error": error, "category": category})


def outcome(make: Callable[[], Reply]) -> Reply:
    """Return what `make` returns, or what it failed by."""
    try:
        return make()
    except RefusedError as error:
        return failed(str(error), "user")
    except LorarlError as error:
        return failed(str(error), "server")
    except Exception as error:  # noqa: BLE001 - one client's request must not end the service of others
        traceback.print_exc(file=sys.stderr)
        return failed(in_one_line(error), "server")


@dataclass(eq=False)
class Promise:
    """A result that will be there.

    Attributes:
        answer: what the request itself was answered.
    """

    answer: Mapping[str, Any]
    reply: Reply | None = None
    _done: asyncio.Event = field(default_factory=asyncio.Event)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def fulfil(self, reply: Reply) -> None:
        """Let the client have the result. Any thread may."""
        self.reply = reply
        self._loop.call_soon_threadsafe(self._done.set)

    async def result(self) -> Reply | None:
        """Wait for the result; return None if it takes longer than one poll."""
        try:
            await asyncio.wait_for(self._done.wait(), POLL_SECONDS)
        except TimeoutError:
            return None
        return self.reply


class Promises:
    """All promises by their ids."""

    def __init__(self) -> None:
        self._all: dict[str, Promise] = {}
        self._delivered: dict[str, None] = {}

    def once(self, request_id: str, make: Callable[[Promise], None], **answer: Any) -> Mapping[str, Any]:
        """Return the answer of a request. `make` takes up a promise that is new, or refuses it.

        Raises:
            RefusedError: by `make`.
        """
        if (known := self._all.get(request_id)) is None:
            known = Promise({"request_id": request_id, **answer})
            make(known)
            self._all[request_id] = known
        return known.answer

    def forget(self, session_id: str) -> None:
        """Forget the promises of a session."""
        for request_id in [one for one in self._all if one.startswith(f"{session_id}:")]:
            del self._all[request_id]
            self._delivered.pop(request_id, None)

    async def result(self, request_id: str) -> Reply | None:
        """Return the result; None if the client is to ask again.

        Raises:
            RefusedError: there is no such promise, or not any more.
        """
        if (promise := self._all.get(request_id)) is None:
            raise RefusedError(f"{request_id} is not known: the service was started again, or its session ended", GONE)
        reply = await promise.result()
        if reply is not None and request_id in self._all:
            self._delivered[request_id] = None
            while len(self._delivered) > _KEPT:
                del self._all[(oldest := next(iter(self._delivered)))], self._delivered[oldest]
        return reply
