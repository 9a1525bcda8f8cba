"""The requests of one caller to the servers, beside those of others: of a step, a later one, or an evaluation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lorarl_trainer.protocols.workers import Generated, TakeCompletions
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion

type Watched = Callable[[Callable[[], Sequence[Any]]], Awaitable[object]]
"""Makes calls, and waits for all. It raises what one of them raises, and when a worker is lost meanwhile."""


@dataclass(eq=False)
class Asked:
    """A request that has not ended.

    Attributes:
        place: its index among those submitted with it.
        take: who gets its completion.
        lane: of the caller.
    """

    request: GenerationRequest
    place: int
    take: TakeCompletions
    lane: Lane


class Lane:
    """`Generators` for one caller. Its requests end, fail and are given up without those of others."""

    def __init__(
        self, queue: Callable[[Sequence[Asked]], None], give_up: Callable[[Lane], Awaitable[None]], watched: Watched
    ) -> None:
        """Take how requests are queued, and how all of a lane that have not ended are given up."""
        self._queue, self._give_up, self._watched = queue, give_up, watched
        self._left: set[Asked] = set()
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    async def submit(self, requests: Sequence[GenerationRequest], take: TakeCompletions) -> None:
        """Queue requests.

        Raises:
            StaleAdapterError: one asks for another adapter version than the servers have.
        """
        asked = [Asked(request, place, take, self) for place, request in enumerate(requests)]
        self._queue(asked)
        self._left.update(asked)

    async def results(self) -> Generated:
        """Wait until all requests of this lane have ended.

        Raises:
            LorarlError: no server is left, a worker was lost, or a completion cannot be taken.
        """
        began = time.perf_counter()
        try:
            await self._watched(lambda: [self._ended()])
            while self._left:  # submitted while the wait ended
                await self._watched(lambda: [self._ended()])
        finally:
            await self._give_up(self)
        return Generated({"generate": time.perf_counter() - began})

    def took(self, asked: Asked, completion: Completion) -> None:
        """Hand a completion over. Raises what its taker raises."""
        asked.take([asked.place], [completion])
        self._left.discard(asked)
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        """Let `results` raise this."""
        self._failure = self._failure or error
        self._changed.set()

    async def _ended(self) -> None:
        while self._left and self._failure is None:
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure
