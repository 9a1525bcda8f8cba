"""The endpoint at another address of this machine, where agents in pods reach it."""

from __future__ import annotations

import asyncio

import aiohttp

from lorarl_trainer.rollout.endpoint.server import Endpoint
from unit.trainer.planning.jobs import cpu_job


def test_it_answers_there_and_wants_a_key() -> None:
    endpoint = Endpoint(cpu_job(), 1000, "127.0.0.2")

    async def ask() -> int:
        async with endpoint.serving(), aiohttp.ClientSession() as session:
            assert endpoint.base_url.startswith("http://127.0.0.2:")
            async with session.get(f"{endpoint.base_url}/models") as answer:
                return answer.status

    assert asyncio.run(ask()) == 401


def test_an_address_of_ipv6_has_brackets_in_a_url() -> None:
    assert Endpoint(cpu_job(), 1000, "fd00::1").base_url == "http://[fd00::1]:0/v1"
