"""What an API server and the network before it do on a bad day, to a part of one client's requests."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from aiohttp import web

from support.cluster.api_proxy import Call

# A request times out for the operator after 15 s, for its lease after 5 s.
LONGEST_HANG_SECONDS = 20.0
Strike = Callable[[Call], Awaitable[web.StreamResponse]]


class ApiFaults:
    """Strikes every third write with a conflict, and a part of all requests and every watch with something else.

    Nothing any more as soon as it is `healed`.
    """

    def __init__(self, seed: int, *, part: float = 0.25) -> None:
        self.healed = False
        self.struck: Counter[str] = Counter()
        self._chance = random.Random(seed)
        self._part = part
        self._writes = 0
        # There are few of them, so they take turns.
        self._of_watches = itertools.cycle(_OF_WATCHES)

    async def intercept(self, call: Call) -> web.StreamResponse:
        if self.healed:
            return await call.forward()
        if call.writes:
            self._writes += 1
            if self._writes % 3 == 0:
                return await self._strike("conflict", call)
        if call.watches:
            # None lives for long, so that there are many.
            return await self._strike(
                next(self._of_watches) if self._chance.random() < 2 * self._part else "cut_watch", call
            )
        if self._chance.random() >= self._part:
            return await call.forward()
        return await self._strike(self._chance.choice(_OF_ALL), call)

    async def _strike(self, name: str, call: Call) -> web.StreamResponse:
        self.struck[name] += 1
        return await getattr(self, f"_{name}")(call)

    # ---- of any request but a watch

    async def _conflict(self, call: Call) -> web.StreamResponse:
        return call.answer(
            409, "Conflict", "the object has been modified; please apply your changes to the latest version"
        )

    async def _too_many_requests(self, call: Call) -> web.StreamResponse:
        return call.answer(429, "TooManyRequests", "too many requests", retry_after=1)

    async def _internal_error(self, call: Call) -> web.StreamResponse:
        return call.answer(500, "InternalError", "etcdserver: leader changed")

    async def _unavailable(self, call: Call) -> web.StreamResponse:
        return call.answer(503, "ServiceUnavailable", "apiserver is shutting down")

    async def _time_out(self, call: Call) -> web.StreamResponse:
        return await call.hang(self._chance.uniform(1, LONGEST_HANG_SECONDS))

    async def _done_but_not_answered(self, call: Call) -> web.StreamResponse:
        await call.fetch()
        return await call.hang(self._chance.uniform(0, LONGEST_HANG_SECONDS))

    async def _cut_in_the_answer(self, call: Call) -> web.StreamResponse:
        return await call.half()

    # ---- of watches

    async def _silent_watch(self, call: Call) -> web.StreamResponse:
        return await call.stream(silent_after=self._chance.uniform(0, 10))

    async def _cut_watch(self, call: Call) -> web.StreamResponse:
        return await call.stream(cut_after=self._chance.uniform(0, 40))

    async def _gone(self, call: Call) -> web.StreamResponse:
        return await call.expired()


_EITHER = ("too_many_requests", "internal_error", "unavailable")
_OF_ALL = (*_EITHER, "time_out", "done_but_not_answered", "cut_in_the_answer")
_OF_WATCHES = ("silent_watch", "cut_watch", "gone", *_EITHER)
EVERY_FAULT = frozenset({"conflict", *_OF_ALL, *_OF_WATCHES})
