"""The turns that episodes ask the engines for, whenever each is ready for its next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from lorarl_trainer.protocols.workers import Generated, Generators
from lorarl_trainer.rollout.collect import added_up
from lorarl_trainer.samples.occupancy import Occupancy
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion


class Turns:
    """Hands turns to the engines while others are being generated.

    With `together`, a turn waits until each player waits for one: then what the engines compute at a time does not
    depend on how long environments take, and a run on a CPU has the same bytes again.
    """

    def __init__(self, workers: Generators, players: int, *, together: bool) -> None:
        """Take turns of so many players, each of which waits for one turn at a time."""
        self._workers, self._players, self._together = workers, players, together
        self._wanted: dict[tuple[int, int], tuple[GenerationRequest, asyncio.Future[Completion]]] = {}
        self._asked, self._submitted = asyncio.Event(), asyncio.Event()
        self._made: list[Generated] = []

    async def of(self, number: int, request: GenerationRequest, sequence: int = 0) -> Completion:
        """Return the next turn of a sequence of an episode. Their numbers decide on its place among other turns."""
        ended: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._wanted[number, sequence] = request, ended
        self._asked.set()
        return await ended

    async def of_all(self, players: Sequence[Awaitable[None]]) -> None:
        """Let all players play to their end. Raises what one of them, or a worker, raises."""

        async def play(player: Awaitable[None]) -> None:
            await player
            self._players -= 1  # at once: nothing else runs between its last episode and this
            self._asked.set()
            self._submitted.set()

        tasks = [asyncio.ensure_future(one) for one in (*map(play, players), self._submit(), self._wait())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._players and self._submitted.is_set():
                await self._give_up()

    @property
    def seconds(self) -> dict[str, float]:
        """What the engines took, by phase."""
        return added_up(one.seconds for one in self._made)

    @property
    def occupancy(self) -> Occupancy:
        """How full the engines were while they generated."""
        return Occupancy.over(one.occupancy for one in self._made)

    async def _submit(self) -> None:
        while self._players:
            await self._asked.wait()
            self._asked.clear()
            if not self._wanted or (self._together and len({number for number, _ in self._wanted}) < self._players):
                continue
            numbers = sorted(self._wanted)
            wanted, self._wanted = [self._wanted[number] for number in numbers], {}

            def take(indices: Sequence[int], ended: Sequence[Completion], wanted: list[_Wanted] = wanted) -> None:
                for index, completion in zip(indices, ended, strict=True):
                    if not (future := wanted[index][1]).done():
                        future.set_result(completion)

            await self._workers.submit([request for request, _ in wanted], take)
            self._submitted.set()

    async def _give_up(self) -> None:
        """Let the engines forget turns for which no wait has begun yet: a wait that is cancelled forgets its own."""
        waiting = asyncio.ensure_future(self._workers.results())
        await asyncio.sleep(0)  # it begins
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    async def _wait(self) -> None:
        """Follow the engines, which may have nothing to do now and then."""
        while self._players:
            await self._submitted.wait()
            self._submitted.clear()
            if not self._players:
                return
            self._made.append(await self._workers.results())


type _Wanted = tuple[GenerationRequest, asyncio.Future[Completion]]
