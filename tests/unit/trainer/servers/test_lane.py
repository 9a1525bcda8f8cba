"""One caller's requests to servers: none is forgotten that comes while the wait for those before ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lorarl_trainer.rollout.turns import Turns
from lorarl_trainer.samples.requests import GenerationRequest
from unit.trainer.servers.test_pool import Run, run, servers_of


async def watched(make: Callable[[], Sequence[Any]]) -> None:
    """Wait as `WorkerGroup` does, whose wait takes several turns of the event loop to end."""
    lost = asyncio.create_task(asyncio.Event().wait())
    calls = asyncio.gather(*make())
    try:
        await asyncio.wait((calls, lost), return_when=asyncio.FIRST_COMPLETED)
        calls.result()
    finally:
        lost.cancel()


@pytest.mark.parametrize("pauses", range(8))
def test_a_turn_that_is_asked_for_as_the_one_before_ends_is_made(pauses: int) -> None:
    """As after a malformed call of a tool, which the trainer answers at once."""
    with servers_of(1) as servers:

        async def play(of: Run) -> None:
            await of.version(1)
            turns = Turns(of.servers.lane(watched), 1, together=False)

            async def player() -> None:
                for _ in range(5):
                    made = await turns.of(0, GenerationRequest([10], "an episode", 0, adapter=1))
                    assert made.adapter_version == 1
                    for _ in range(pauses):
                        await asyncio.sleep(0)

            async with asyncio.timeout(5):
                await turns.of_all([player()])

        run(servers, play)
