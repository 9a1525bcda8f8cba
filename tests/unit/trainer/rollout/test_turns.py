"""Episodes ask the engines for turns: together where the bytes must be the same again, and otherwise at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from lorarl_trainer.errors import LorarlError
from lorarl_trainer.protocols.workers import Generated, TakeCompletions, Workers
from lorarl_trainer.rollout.turns import Turns
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion


class Engines:
    """Completes each request with its own tokens, as soon as someone waits for results."""

    def __init__(self, fails: bool = False) -> None:
        self.batches: list[list[int]] = []
        self._waiting: list[tuple[Sequence[GenerationRequest], TakeCompletions]] = []
        self._fails = fails

    async def submit(self, requests: Sequence[GenerationRequest], take: TakeCompletions) -> None:
        await asyncio.sleep(0)
        self.batches.append([request.tokens[0] for request in requests])
        self._waiting.append((requests, take))

    async def results(self) -> Generated:
        if self._fails:
            raise LorarlError("a worker is lost")
        while self._waiting:
            requests, take = self._waiting.pop(0)
            await asyncio.sleep(0)
            made = [Completion(np.array(request.tokens), np.zeros(1), True, 1) for request in requests]
            take(list(range(len(made))), made)
        return Generated({"generate": 1.0})


def played(engines: Engines, turns_of: dict[int, int], *, together: bool) -> dict[int, list[int]]:
    """Play episodes of so many turns, each with its own pauses; return the tokens that each got."""
    got: dict[int, list[int]] = {number: [] for number in turns_of}

    async def play() -> None:
        turns = Turns(cast("Workers", engines), len(turns_of), together=together)

        async def player(number: int) -> None:
            for turn in range(turns_of[number]):
                for _ in range(number * 7 % 5):
                    await asyncio.sleep(0)
                made = await turns.of(number, GenerationRequest([10 * number + turn]))
                got[number] += made.tokens.tolist()

        await turns.of_all([player(number) for number in turns_of])
        assert set(turns.seconds) == {"generate"}

    asyncio.run(asyncio.wait_for(play(), 60))
    return got


@pytest.mark.parametrize("together", [True, False])
def test_each_episode_gets_its_own_turns_in_their_order(together: bool) -> None:
    turns_of = {0: 3, 1: 1, 2: 2, 3: 4}
    got = played(Engines(), turns_of, together=together)
    assert got == {number: [10 * number + turn for turn in range(turns_of[number])] for number in turns_of}


def test_together_a_batch_is_all_that_still_play_in_their_order() -> None:
    engines = Engines()
    played(engines, {0: 3, 1: 1, 2: 2, 3: 4}, together=True)
    assert engines.batches == [[0, 10, 20, 30], [1, 21, 31], [2, 32], [33]]


def test_otherwise_no_episode_waits_for_another_one() -> None:
    engines = Engines()
    played(engines, {0: 3, 1: 1, 2: 2, 3: 4}, together=False)
    assert len(engines.batches) > 4


def test_a_lost_worker_ends_all_episodes() -> None:
    with pytest.raises(LorarlError, match="a worker is lost"):
        played(Engines(fails=True), {0: 1, 1: 2}, together=False)
