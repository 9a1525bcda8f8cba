"""The lease in virtual time, with a store that answers like the API server: versions, conflicts, outages."""

from __future__ import annotations

import asyncio
import copy
import logging
from typing import Any

import pytest

from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.lease import Lease, LeaseLostError
from lorarl_operator.kube.resources import Resource
from support import virtual_time


class Store:
    """One lease. It does not answer the clients in `down`."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.down: set[str] = set()

    def client(self, name: str) -> StoreClient:
        return StoreClient(self, name)


class StoreClient:
    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name

    async def _up(self) -> None:
        await asyncio.sleep(0.01)
        if self.name in self.store.down:
            await asyncio.sleep(60)

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any] | None:
        await self._up()
        return copy.deepcopy(self.store.lease)

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        await self._up()
        if self.store.lease is not None:
            raise ApiError("POST", 409, "AlreadyExists", "it exists")
        return self._store(manifest)

    async def replace(self, manifest: dict[str, Any]) -> dict[str, Any]:
        await self._up()
        assert self.store.lease is not None
        if manifest["metadata"]["resourceVersion"] != self.store.lease["metadata"]["resourceVersion"]:
            raise ApiError("PUT", 409, "Conflict", "it was changed")
        return self._store(manifest)

    def _store(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.store.version += 1
        self.store.lease = copy.deepcopy(manifest)
        self.store.lease["metadata"]["resourceVersion"] = str(self.store.version)
        return copy.deepcopy(self.store.lease)


def lease(store: Store, name: str) -> Lease:
    return Lease(store.client(name), "ns", "operator", name, clock=virtual_time.now)


def test_one_replica_leads_and_the_other_takes_over_within_17_s() -> None:
    async def story() -> float:
        store = Store()
        first, second = lease(store, "first"), lease(store, "second")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        standing_by = asyncio.create_task(second.acquire())
        await asyncio.sleep(120)
        assert not standing_by.done() and not holding.done()
        assert first.seconds_to_write() > 10 and second.seconds_to_write() == 0
        holding.cancel()  # kill -9
        died = virtual_time.now()
        await standing_by
        assert second.seconds_to_write() > 14
        return virtual_time.now() - died

    took = virtual_time.run(story())
    assert 13 <= took <= 17.1


def test_a_released_lease_passes_within_one_period() -> None:
    async def story() -> float:
        store = Store()
        first, second = lease(store, "first"), lease(store, "second")
        await first.acquire()
        standing_by = asyncio.create_task(second.acquire())
        await asyncio.sleep(1)
        await first.release()
        released = virtual_time.now()
        assert first.seconds_to_write() == 0
        await standing_by
        assert store.lease is not None
        assert store.lease["spec"]["holderIdentity"] == "second"
        assert store.lease["spec"]["leaseTransitions"] >= 1
        return virtual_time.now() - released

    assert virtual_time.run(story()) <= 2.1


def test_two_replicas_never_write_at_once_whatever_the_network_does() -> None:
    async def story() -> int:
        store = Store()
        first, second = lease(store, "first"), lease(store, "second")
        both = 0

        async def replica(one: Lease, name: str) -> None:
            while True:
                await one.acquire()
                try:
                    await one.hold()
                except LeaseLostError:
                    # As the process would: it restarts.
                    continue

        tasks = [asyncio.create_task(replica(first, "first")), asyncio.create_task(replica(second, "second"))]
        led = set()
        for second_number in range(4000):
            await asyncio.sleep(0.25)
            # Each in turn is disconnected for 30 s, at times both.
            phase = (second_number // 120) % 5
            store.down = {1: {"first"}, 2: {"second"}, 4: {"first", "second"}}.get(phase, set())
            writers = [name for name, one in (("first", first), ("second", second)) if one.seconds_to_write() > 0]
            led.update(writers)
            both += len(writers) == 2
        for task in tasks:
            task.cancel()
        assert led == {"first", "second"}
        return both

    assert virtual_time.run(story()) == 0


def test_a_started_write_ends_before_another_replica_may_lead(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        store = Store()
        first, second = lease(store, "first"), lease(store, "second")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        standing_by = asyncio.create_task(second.acquire())
        await asyncio.sleep(30)
        store.down = {"first"}
        latest_end = 0.0
        while not standing_by.done():
            if left := first.seconds_to_write():
                latest_end = virtual_time.now() + left
            await asyncio.sleep(0.1)
        assert 0 < latest_end <= virtual_time.now()
        with pytest.raises(LeaseLostError, match="not renewed for 10 s"):
            await holding

    with caplog.at_level(logging.WARNING):
        virtual_time.run(story())
    assert "could not be read or written" in caplog.text


def test_a_renewal_whose_answer_was_lost_does_not_lose_the_lease() -> None:
    async def story() -> None:
        store = Store()
        first = lease(store, "first")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(10)
        assert store.lease is not None
        store.version += 1  # The renewal arrived, and its answer was lost.
        store.lease["metadata"]["resourceVersion"] = str(store.version)
        await asyncio.sleep(60)
        assert not holding.done()
        assert first.seconds_to_write() > 10
        holding.cancel()

    virtual_time.run(story())


def test_a_lease_taken_by_another_is_lost_at_once() -> None:
    async def story() -> None:
        store = Store()
        first = lease(store, "first")
        await first.acquire()
        assert store.lease is not None
        store.version += 1
        store.lease["metadata"]["resourceVersion"] = str(store.version)
        store.lease["spec"]["holderIdentity"] = "another"
        with pytest.raises(LeaseLostError, match="taken by another"):
            await first.hold()
        assert first.seconds_to_write() == 0

    virtual_time.run(story())
