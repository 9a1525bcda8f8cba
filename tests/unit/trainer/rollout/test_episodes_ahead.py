"""Episodes of later steps are played while one trains: within the bounds, and by rows and seeds as in turns."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lorarl_api.load import load_job
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.stream import RowStream
from lorarl_trainer.guards.staleness import require_staleness
from lorarl_trainer.progress import Progress
from lorarl_trainer.protocols.workers import Workers
from lorarl_trainer.rewards.environment.environment import Answer
from lorarl_trainer.rewards.scores import Outcome
from lorarl_trainer.rollout.ahead import Ahead
from lorarl_trainer.rollout.endpoint.conversation import Ask
from lorarl_trainer.rollout.episodes import Episodes
from lorarl_trainer.rollout.lockstep import Lockstep
from lorarl_trainer.rollout.played import Played, PlayedSequence
from lorarl_trainer.samples.sample import Sample
from support.loop_runs import rows, spelled
from unit.contract.environment_cases import PLAYED
from unit.contract.manifests import manifest
from unit.trainer.rollout.test_ahead import GROUP, PROMPTS, ROWS, Chance, in_order, prompt_of, while_serving

PLACES = 3
CHANGES = {
    "spec.rollout.promptsPerStep": PROMPTS,
    "spec.algorithm.groupSize": GROUP,
    "spec.environment.maxTurns": 3,
    "spec.environment.concurrency": PLACES,
}
SPEC = load_job(json.dumps(manifest(PLAYED | CHANGES))).spec


@dataclass
class World:
    """Environments without processes, each of which takes its own time.

    Attributes:
        seeds: of the episodes that began, by the prompts of their rows.
        live: episodes that are played.
    """

    stream: random.Random
    seeds: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    live: int = 0

    @contextlib.asynccontextmanager
    async def episode(self, seed: int) -> AsyncIterator[Any]:
        self.live += 1
        assert self.live <= PLACES
        turns = self.stream.randrange(1, 5)

        async def reset(_: object) -> int:
            await self.pause()
            return seed

        async def step(_: str) -> Answer:
            nonlocal turns
            await self.pause()
            turns -= 1
            return Answer("go on", turns == 0, 0.5)

        try:
            yield SimpleNamespace(reset=reset, step=step, seconds=0.0)
        finally:
            self.live -= 1

    def opened(self, row: EncodedRow, seed: int) -> EncodedRow:
        self.seeds.append((tuple(row.prompt_ids), seed))
        return replace(row, prompt_ids=list(row.prompt_ids))

    async def pause(self) -> None:
        for _ in range(self.stream.randrange(20)):
            await asyncio.sleep(0)


class Branches:
    """Agents of which each says something, and then two things side by side."""

    def serving(self) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    async def play(self, played: Played, episode: Any, ask: Ask) -> Outcome:
        await ask(played.first, 4, ())
        further = PlayedSequence(played.first.row, 1)
        further.append(played.first.response, made=False)
        played.sequences.append(further)
        await asyncio.gather(ask(further, 4, ()), ask(played.first, 4, ()))
        return Outcome(1.0)


def ahead(
    workers: Chance, world: World, most: int, last: int, position: int = 0, agents: Branches | None = None
) -> Ahead:
    bridge = SimpleNamespace(opened=world.opened, tokens=lambda row, text, ended: [3], stop_ids=(0,))
    episodes = Episodes(SPEC, cast(Any, world), cast(Any, bridge), spelled, spelled, together=False)
    if agents is not None:
        episodes = replace(episodes, agents=lambda: cast(Any, agents))
    stream, progress = RowStream(rows(ROWS), 0, position), Progress([], [])
    source = Lockstep(
        SPEC, stream, {}, GROUP, cast(Workers, workers), episodes, spelled, progress, spelled, newer=most > 0
    )
    return Ahead(source, most, last)


def versions_of(sample: Sample) -> list[int]:
    """By which version each turn was made: it says so in its second token."""
    return [int(version) for version in sample.trained_targets[1::2]]


async def trained(workers: Chance, source: Ahead, first: int, stop: int) -> list[list[tuple[int, ...]]]:
    """Train from a step up to another one; return the prompts of each step's samples."""
    found = []
    for step in range(first, stop):
        workers.step = step
        batch = await source.next(step, workers.version)
        require_staleness(batch.samples_S, workers.version, source.most)
        versions = workers.made_by[step]
        assert min(versions) >= workers.version - source.most
        assert all(sample.version == min(versions_of(sample)) for sample in batch.samples_S), (
            "as old as its oldest turn"
        )
        assert all(sample.fresh == (sample.version == workers.version) for sample in batch.samples_S)
        counts = [len(set(versions_of(sample))) for sample in batch.samples_S]
        assert batch.metrics["staleness/versions"] == np.mean(counts)
        found.append([prompt_of(sample) for sample in batch.samples_S])
        assert source.position == step * PROMPTS
        for _ in range(workers.stream.randrange(60)):  # an update, while the servers generate
            await asyncio.sleep(0)
        workers.version += 1
    return found


def in_turns(steps: int) -> list[tuple[tuple[int, ...], int]]:
    """The seeds of the episodes of a run that takes turns, sorted."""
    workers, world = Chance(random.Random(0)), World(random.Random(0))

    async def run() -> None:
        source = ahead(workers, world, 0, steps).source
        for step in range(1, steps + 1):
            await source.next(step, workers.version)

    asyncio.run(while_serving(workers, run()))
    return sorted(world.seeds)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 6), st.integers(0, 6))
@example(1_153_034_993, 1, 2, 1)  # it ends when a turn was asked for and no wait for it has begun
def test_however_long_episodes_take_the_bounds_hold(seed: int, most: int, last: int, ended: int) -> None:
    """Also if the run ends within an episode, and begins again at the position that a checkpoint has."""
    ended = min(ended, last)
    workers, world = Chance(random.Random(seed)), World(random.Random(seed))

    async def run() -> list[list[tuple[int, ...]]]:
        source = ahead(workers, world, most, last)
        found = await trained(workers, source, 1, ended + 1)
        await source.stop()
        assert world.live == 0 and not workers.queued and not workers.sent, "nothing runs on"
        workers.made_by.clear()
        source = ahead(workers, world, most, last, source.position)
        found += await trained(workers, source, ended + 1, last + 1)
        return found

    assert asyncio.run(while_serving(workers, run())) == in_order(last)
    assert workers.reach <= most and world.live == 0
    assert set(world.seeds) == set(in_turns(last)), (
        "an episode begins as it does in turns, also when it is played again"
    )


def test_all_sequences_of_an_episode_are_samples_of_its_step() -> None:
    workers, world = Chance(random.Random(0)), World(random.Random(0))

    async def run() -> None:
        source = ahead(workers, world, 2, 6, agents=Branches())
        for step in range(1, 7):
            batch = await source.next(step, workers.version)
            assert list(batch.counts) == [2] * (PROMPTS * GROUP) and len(batch.samples_S) == 2 * PROMPTS * GROUP
            require_staleness(batch.samples_S, workers.version, source.most)
            for span in batch.spans:
                first, second = (batch.samples_S[index] for index in span)
                assert [len(versions_of(one)) for one in (first, second)] == [2, 1], "what they share is trained once"
                assert first.tokens[: len(second.tokens) - 2].tolist() == second.tokens[:-2].tolist()
                assert [one.version for one in (first, second)] == [min(versions_of(first)), *versions_of(second)]
                assert all(one.fresh == (one.version == workers.version) for one in (first, second))
            await world.pause()
            workers.version += 1

    asyncio.run(while_serving(workers, run()))


def test_each_turn_is_by_the_newest_version() -> None:
    workers, world = Chance(random.Random(0)), World(random.Random(0))

    async def run() -> None:
        source = ahead(workers, world, 2, 9)
        for step in range(1, 10):
            batch = await source.next(step, workers.version)
            if batch.metrics["staleness/versions"] > 1:
                several = next(one for one in map(versions_of, batch.samples_S) if len(set(one)) > 1)
                assert several == sorted(several) and several[-1] <= workers.version
                return
            await world.pause()
            workers.version += 1
        raise AssertionError("no episode was made by two versions")

    asyncio.run(while_serving(workers, run()))
