"""Which engine a request goes to, and who gets its completion, with workers that answer in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self

import numpy as np
import pytest

from lorarl_trainer.samples.occupancy import Occupancy
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion
from lorarl_trainer.samples.wire import CompletionChunk, Completions
from lorarl_trainer.workers.engines import Engines


class Actor:
    """A worker. It generates the prompt again, a request in each chunk, and takes `pauses` before each."""

    def __init__(self, *, first: bool = True, pauses: int = 3) -> None:
        self.first, self.pauses = first, pauses
        self.queue: dict[int, GenerationRequest] = {}
        self.made: list[list[int]] = []
        self.until: list[int] = []
        self.submit, self.results = Method(self._submit), Method(self._results)
        self.error: Exception | None = None

    async def _submit(self, requests: dict[int, GenerationRequest]) -> None:
        await asyncio.sleep(0)
        self.queue |= requests

    async def _results(self, until: int) -> AsyncIterator[Any]:
        self.until.append(until)
        while self.queue:
            for _ in range(self.pauses):
                await asyncio.sleep(0)
            if self.error:
                raise self.error
            number = next(iter(self.queue))
            tokens = self.queue.pop(number).tokens
            self.made.append(list(tokens))
            if self.first:
                completion = Completion(np.asarray(tokens), np.empty(0, np.float32), True, 1)
                yield answer(CompletionChunk([number], Completions([completion]), {"generate": 1.0}, Occupancy(1, 1)))


class Method:
    """An actor's method."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.remote = function

    def options(self, **_: object) -> Self:
        return self


async def answer(chunk: CompletionChunk) -> CompletionChunk:
    return chunk


def wanted(*prompts: int) -> list[GenerationRequest]:
    return [GenerationRequest([prompt]) for prompt in prompts]


class Driver:
    """What a worker group does with its engines, and the completions that it took."""

    def __init__(self, actors: Sequence[Actor], ranks: int = 1) -> None:
        self.engines = Engines(actors, ranks)
        self.took: dict[int, int] = {}

    async def submit(self, *prompts: int, then: Callable[[int], None] = lambda prompt: None) -> None:
        def take(places: Sequence[int], completions: Sequence[Completion]) -> None:
            for place, completion in zip(places, completions, strict=True):
                assert completion.tokens.tolist() == [prompts[place]]
                self.took[prompts[place]] = self.took.get(prompts[place], 0) + 1
                then(prompts[place])

        await asyncio.gather(*self.engines.submit(wanted(*prompts), take))
        self.engines.start()

    async def results(self) -> None:
        while running := self.engines.running:
            await asyncio.gather(*running)


def test_neighbours_go_to_one_engine() -> None:
    async def run() -> list[list[list[int]]]:
        driver = Driver(actors := [Actor() for _ in range(3)])
        await driver.submit(*range(8))
        await driver.results()
        assert driver.took == dict.fromkeys(range(8), 1)
        return [actor.made for actor in actors]

    assert asyncio.run(run()) == [[[0], [1]], [[2], [3], [4]], [[5], [6], [7]]]


def test_a_request_that_comes_later_goes_to_the_engine_with_least_to_do() -> None:
    async def run() -> None:
        driver = Driver(actors := [Actor(pauses=1), Actor(pauses=50)])
        await driver.submit(0, 1, 2, 3)
        while len(actors[0].made) < 2:
            await asyncio.sleep(0)
        await driver.submit(9)
        await driver.results()
        assert [9] in actors[0].made and driver.took == {0: 1, 1: 1, 2: 1, 3: 1, 9: 1}

    asyncio.run(run())


def test_a_completion_may_ask_for_the_next() -> None:
    """Also when the engine has nothing left: it starts again."""

    async def run() -> None:
        driver, others = Driver([Actor(pauses=0)]), list[asyncio.Task[None]]()

        def then(prompt: int) -> None:
            if prompt < 20:
                others.append(asyncio.create_task(driver.submit(prompt + 1, then=then)))

        await driver.submit(0, then=then)
        while len(driver.took) < 21:
            await driver.results()
            await asyncio.sleep(0)
        await asyncio.gather(*others)
        made = driver.engines.made()
        assert made.seconds == {"generate": pytest.approx(made.occupancy.steps)} and 0 < made.occupancy.steps <= 21
        assert driver.engines.made().seconds == {}

    asyncio.run(run())


def test_all_ranks_of_an_engine_get_the_same_requests() -> None:
    async def run() -> None:
        actors = [Actor(first=rank % 2 == 0) for rank in range(4)]
        driver = Driver(actors, ranks=2)
        await driver.submit(0, 1, 2, 3)
        await driver.results()
        assert driver.took == dict.fromkeys(range(4), 1)
        assert [actor.made for actor in actors] == [[[0], [1]]] * 2 + [[[2], [3]]] * 2
        assert [actor.until for actor in actors] == [[4]] * 4

    asyncio.run(run())


def test_a_failure_ends_the_wait_and_all_that_runs() -> None:
    async def run() -> None:
        driver = Driver(actors := [Actor(pauses=10_000), Actor()])
        await driver.submit(0, 1)
        actors[1].error = RuntimeError("lost")
        with pytest.raises(RuntimeError, match="lost"):
            await driver.results()
        await driver.engines.stop()
        assert not actors[0].made and all(task.done() for task in driver.engines.running)

    asyncio.run(run())
