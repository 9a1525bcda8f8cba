"""Several versions at a time: a request ends with the version it began with, and each caller has its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from lorarl_trainer.errors import RolloutServerError, StaleAdapterError
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion
from unit.trainer.servers.http_vllm import Vllm
from unit.trainer.servers.test_pool import Run, run, servers_of, watched

PROOF = [1, 2]


class Caller:
    """A caller beside others, and the versions of what it got, by place."""

    def __init__(self, of: Run, version: int, count: int = 4) -> None:
        self.lane, self.versions = of.servers.lane(watched), dict[int, int]()
        self.requests = [
            GenerationRequest([10 + place], "in step 1", seed=0, adapter=version, newer=True) for place in range(count)
        ]

    def take(self, places: Sequence[int], made: Sequence[Completion]) -> None:
        for place, completion in zip(places, made, strict=True):
            assert place not in self.versions, f"request {place} is answered twice"
            self.versions[place] = completion.adapter_version

    async def ask(self) -> dict[int, int]:
        await self.lane.submit(self.requests, self.take)
        await self.lane.results()
        assert len(self.versions) == len(self.requests)
        return self.versions


async def until(met: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not met():
            await asyncio.sleep(0.005)


def numbers(server: Vllm) -> list[str]:
    return sorted(name.rpartition("-")[2] for name in server.adapters)


def test_a_request_ends_with_the_version_it_began_with() -> None:
    with servers_of(1) as [server]:
        server.slots = 2

        async def three_versions(of: Run) -> None:
            await of.version(1)
            server.held = lambda name: name.endswith("-1")
            older = asyncio.create_task(Caller(of, 1).ask())
            await until(lambda: len(of.servers.folders_in_use()) == 1)
            of.servers.let_go()
            await of.version(2)
            assert numbers(server) == ["1", "2"]
            assert [folder.name[-1] for folder in of.servers.folders_in_use()] == ["1"], "a server may read it again"
            assert set((await Caller(of, 1).ask()).values()) == {2}, "the newest, although an older one would do"
            assert not older.done()
            server.held = lambda name: False
            assert set((await older).values()) == {1}
            of.servers.let_go()
            await of.version(3)
            assert numbers(server) == ["3"]

        assert not run([server], three_versions, staleness=1).warnings
        assert server.most_adapters == 2 and not server.adapters


def test_requests_of_a_lost_server_begin_again_with_the_newest_version() -> None:
    with servers_of(2) as (lost, other):
        lost.slots = other.slots = 2

        async def make(of: Run) -> None:
            await of.version(1)
            lost.held = other.held = lambda name: name.endswith("-1")
            older = asyncio.create_task(Caller(of, 1).ask())
            await until(lambda: of.servers.folders_in_use())
            of.servers.let_go()
            await of.version(2)
            lost.down, lost.held = True, lambda name: False
            await until(lambda: of.warnings)
            other.held = lambda name: False
            assert sorted((await older).values()) == [1, 1, 2, 2]

        found = run([lost, other], make, staleness=1)
    assert [text for text in found.warnings if lost.url in text]


def test_a_server_that_silently_serves_an_older_version_is_left_out() -> None:
    with servers_of(2) as (liar, honest):
        liar.slots = honest.slots = 2

        async def make(of: Run) -> None:
            await of.version(1)
            await Caller(of, 1).ask()
            of.servers.let_go()
            await of.version(2)
            liar.says = of.servers.version_of(1).name
            assert set((await Caller(of, 1).ask()).values()) == {2}
            assert of.servers.serving == (honest.url,)

        [warning] = run([liar, honest], make, staleness=1).warnings
        assert f"{liar.url} answers by the model" in warning


def test_a_server_proves_nothing_while_the_trainer_changes_the_adapter() -> None:
    """It comes back during an update. What the trainer would compute then is of another adapter."""
    with servers_of(2) as (back, other):
        back.slots = other.slots = 2

        def proofs() -> int:
            return sum(prompt == PROOF for _, prompt in back.generated)

        async def make(of: Run) -> None:
            await of.version(1)
            of.servers.let_go()
            back.restart()
            assert set((await Caller(of, 1).ask()).values()) == {1}
            assert of.servers.serving == (other.url,) and proofs() == 1
            for _ in range(5):
                await Caller(of, 1).ask()
            assert proofs() == 1
            await of.version(2)
            assert len(of.servers.serving) == 2 and proofs() == 2

        run([back, other], make, staleness=1)


def test_while_no_server_serves_steps_ahead_wait_for_the_next_version() -> None:
    """Longer than a server may take, since it can come back only then."""
    with servers_of(1) as [server]:
        server.slots = 2

        async def make(of: Run) -> None:
            await of.version(1)
            of.servers.let_go()
            server.restart()
            older = asyncio.create_task(Caller(of, 1).ask())
            await until(lambda: of.warnings)
            await asyncio.wait([older], timeout=4.0)
            assert not older.done()
            await of.version(2)
            assert set((await older).values()) == {2}

        run([server], make, staleness=1, seconds=3.0)


def test_a_caller_that_gives_up_leaves_the_others_alone() -> None:
    with servers_of(1) as [server]:

        async def make(of: Run) -> None:
            await of.version(1)
            server.held = lambda name: True
            first, second = (asyncio.create_task(Caller(of, 1).ask()) for _ in range(2))
            await until(lambda: of.servers.folders_in_use())
            first.cancel()
            await asyncio.wait([first])
            server.held = lambda name: False
            assert len(await second) == 4

        run([server], make)


def test_a_caller_that_cannot_take_a_completion_fails_alone() -> None:
    with servers_of(1) as [server]:

        async def make(of: Run) -> None:
            await of.version(1)
            failing, other = Caller(of, 1), Caller(of, 1)

            def refuse(places: Sequence[int], made: Sequence[Completion]) -> None:
                raise StaleAdapterError("not this one")

            failing.take = refuse  # type: ignore[method-assign]
            failed, found = await asyncio.gather(failing.ask(), other.ask(), return_exceptions=True)
            assert isinstance(failed, StaleAdapterError) and isinstance(found, dict)

        run([server], make)


def test_a_server_with_too_few_slots_is_refused_with_what_to_start() -> None:
    with servers_of(1) as [server], pytest.raises(RolloutServerError, match="expected 3") as refused:

        async def make(of: Run) -> None:
            await of.version(1)

        run([server], make, staleness=2)
    assert "Start the server with --max-loras 3 or more" in str(refused.value)


def test_no_request_is_lost_or_too_old_however_servers_fail() -> None:
    """One of three never fails. Callers ask all the time, and versions follow each other."""
    for seed in range(6):
        stream = random.Random(seed)
        with servers_of(3) as three:
            for server in three:
                server.slots = 9
            for server in three[1:]:
                server.fail_by_chance(stream, 0.05)

            async def make(of: Run) -> None:
                asked: list[tuple[int, asyncio.Task[dict[int, int]]]] = []
                for version in range(1, 6):
                    await of.version(version)
                    asked += [(version, asyncio.create_task(Caller(of, version, 20).ask())) for _ in range(2)]
                    await asyncio.wait([task for _, task in asked], timeout=0.02)
                    of.servers.let_go()
                await of.version(6)
                async with asyncio.timeout(30):
                    for version, task in asked:
                        assert set((await task).values()) <= set(range(version, 7))

            run(three, make, staleness=8)
