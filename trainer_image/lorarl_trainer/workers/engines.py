"""The engines of all workers: which request goes to which, and what becomes of its completion."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lorarl_trainer.protocols.workers import Generated, TakeCompletions
from lorarl_trainer.samples.occupancy import Occupancy
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion
from lorarl_trainer.samples.wire import CompletionChunk

BESIDE = "beside"
"""The workers' thread for what they do while they generate."""


@dataclass
class _Engine:
    """One engine.

    Attributes:
        actors: the workers of its ranks.
        asked: by number, the requests that have not ended: their places among those submitted with them, and who takes
            them.
        running: generates them; None at the beginning.
        made: how that went, since the driver asked last.
    """

    actors: Sequence[Any]
    asked: dict[int, tuple[int, TakeCompletions]] = field(default_factory=dict)
    running: asyncio.Task[None] | None = None
    made: Generated = field(default_factory=Generated)


class Engines:
    """All engines, addressed together."""

    def __init__(self, actors: Sequence[Any], ranks: int) -> None:
        """Take the workers in the order of their ranks, so many of which are one engine."""
        self._engines = [_Engine(actors[first : first + ranks]) for first in range(0, len(actors), ranks)]
        self._next = self._delivered = 0  # numbers of requests

    def submit(self, requests: Sequence[GenerationRequest], take: TakeCompletions) -> list[Any]:
        """Give requests to the engines; return the calls that do it. When they have ended, `start` comes before others.

        Neighbours stay together, so that an engine computes a group's prompt once. Engines with less to do get more.
        """
        engines = sorted(self._engines, key=lambda engine: len(engine.asked), reverse=True)
        calls = []
        for place, engine in enumerate(engines):
            share = range(*(len(requests) * bound // len(engines) for bound in (place, place + 1)))
            numbered = dict(enumerate((requests[index] for index in share), self._next))
            self._next += len(share)
            engine.asked |= {number: (index, take) for number, index in zip(numbered, share, strict=True)}
            # All ranks of a tensor-parallel engine get the same requests.
            if numbered:
                calls += [actor.submit.options(concurrency_group=BESIDE).remote(numbered) for actor in engine.actors]
        return calls

    def start(self) -> None:
        """Let the engines generate that have got requests, unless they do."""
        self._delivered = self._next
        for engine in self._engines:
            if engine.asked and (engine.running is None or engine.running.done()):
                engine.running = asyncio.create_task(self._run(engine))

    @property
    def running(self) -> list[asyncio.Task[None]]:
        """What runs; a failure is among it until `stop`."""
        return [engine.running for engine in self._engines if engine.running and engine.asked]

    def made(self) -> Generated:
        """Return how all engines generated since the last call: the slowest one's seconds."""
        made = [engine.made for engine in self._engines]
        for engine in self._engines:
            engine.made = Generated()
        slowest = max(made, key=lambda one: sum(one.seconds.values()))
        return Generated(slowest.seconds, Occupancy.over(one.occupancy for one in made))

    async def stop(self) -> None:
        """End what runs."""
        tasks = [engine.running for engine in self._engines if engine.running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, engine: _Engine) -> None:
        while engine.asked:  # some may have come when the engine had just ended
            until = self._delivered  # all ranks have got these
            streams = [asyncio.create_task(_follow(actor, until, engine.asked)) for actor in engine.actors]
            try:
                first, *_ = await asyncio.gather(*streams)
            finally:
                for stream in streams:
                    stream.cancel()
            engine.made = engine.made.then(first)


async def _follow(actor: Any, until: int, asked: dict[int, tuple[int, TakeCompletions]]) -> Generated:
    """Let a rank generate, and hand its completions over as they arrive."""
    generated = Generated()
    async for reference in actor.results.remote(until):
        chunk: CompletionChunk = await reference
        generated = Generated(chunk.seconds, chunk.occupancy)
        _hand_over(chunk, asked)
    return generated


def _hand_over(chunk: CompletionChunk, asked: dict[int, tuple[int, TakeCompletions]]) -> None:
    """Give completions to those who asked for them."""
    found: dict[TakeCompletions, list[tuple[int, Completion]]] = {}
    for number, completion in zip(chunk.numbers, chunk.completions, strict=True):
        place, take = asked.pop(number)
        found.setdefault(take, []).append((place, completion))
    for take, ended in found.items():
        take([place for place, _ in ended], [completion for _, completion in ended])
