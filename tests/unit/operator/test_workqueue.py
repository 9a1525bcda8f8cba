"""The work queue in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from lorarl_operator.control.workqueue import LONGEST_BACKOFF_SECONDS, WorkQueue
from support import virtual_time


def test_a_key_added_often_is_processed_once() -> None:
    async def story() -> None:
        queue: WorkQueue[str] = WorkQueue(virtual_time.now)
        for _ in range(5):
            queue.add("a")
        queue.add("b")
        assert [await queue.get(), await queue.get()] == ["a", "b"]
        assert len(queue) == 0

    virtual_time.run(story())


def test_a_key_returns_only_when_its_worker_is_done() -> None:
    async def story() -> None:
        queue: WorkQueue[str] = WorkQueue(virtual_time.now)
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a")
        queue.add("b")
        assert await queue.get() == "b"
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(1)
        assert not waiting.done()
        queue.done("a")
        assert await waiting == "a"

    virtual_time.run(story())


def test_the_earliest_request_counts_and_an_idle_worker_wakes_in_time() -> None:
    async def story() -> list[tuple[str, float]]:
        queue: WorkQueue[str] = WorkQueue(virtual_time.now)
        queue.add_after("a", 30)
        queue.add_after("b", 20)
        taken = []

        async def worker() -> None:
            while True:
                key = await queue.get()
                taken.append((key, virtual_time.now()))
                queue.done(key)

        workers = [asyncio.create_task(worker()) for _ in range(2)]
        await asyncio.sleep(5)
        queue.add_after("a", 5)
        queue.add_after("a", 60)
        await asyncio.sleep(100)
        for task in workers:
            task.cancel()
        return taken

    assert virtual_time.run(story()) == [("a", 10.0), ("b", 20.0)]


def test_a_failing_key_backs_off_to_a_minute_and_success_resets_it() -> None:
    async def story() -> None:
        queue: WorkQueue[str] = WorkQueue(virtual_time.now)
        delays = [queue.add_rate_limited("a") for _ in range(12)]
        assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
        assert max(delays) == delays[-1] == LONGEST_BACKOFF_SECONDS == 60
        queue.forget("a")
        assert queue.add_rate_limited("a") == 0.5
        assert queue.add_rate_limited("b", at_least=7) == 7

    virtual_time.run(story())


def test_a_key_that_always_fails_does_not_delay_the_others() -> None:
    async def story() -> Counter[str]:
        queue: WorkQueue[str] = WorkQueue(virtual_time.now)
        counts: Counter[str] = Counter()

        async def worker() -> None:
            while True:
                key = await queue.get()
                counts[key] += 1
                await asyncio.sleep(0.01)
                if key == "broken":
                    queue.add_rate_limited(key)
                else:
                    queue.forget(key)
                    queue.add_after(key, 1)
                queue.done(key)

        queue.add("broken")
        queue.add("healthy")
        task = asyncio.create_task(worker())
        await asyncio.sleep(600)
        task.cancel()
        return counts

    counts = virtual_time.run(story())
    assert counts["healthy"] > 550
    assert 10 < counts["broken"] < 20


def test_urgent_keys_overtake_but_the_others_continue() -> None:
    async def story() -> list[int]:
        queue: WorkQueue[int] = WorkQueue(virtual_time.now)
        for key in range(8):
            queue.add(key)
        for key in range(100, 108):
            queue.add(key, urgent=True)
        assert len(queue) == 16
        return [await queue.get() for _ in range(16)]

    order = virtual_time.run(story())
    assert sorted(order) == [*range(8), *range(100, 108)]
    assert sum(key >= 100 for key in order[:8]) == 6


STEPS = st.lists(st.tuples(st.sampled_from(["add", "after", "fail", "take", "done"]), st.integers(0, 3)), max_size=60)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_no_key_is_ever_lost_or_processed_twice_at_once(steps: list[tuple[str, int]]) -> None:
    async def story() -> None:
        queue: WorkQueue[int] = WorkQueue(virtual_time.now)
        processing: set[int] = set()
        wanted: set[int] = set()
        requests = {"add": queue.add, "after": lambda key: queue.add_after(key, 5), "fail": queue.add_rate_limited}
        for step, key in steps:
            if step in requests:
                requests[step](key)
                wanted.add(key)
            elif step == "take" and len(queue):
                taken = await queue.get()
                assert taken not in processing
                processing.add(taken)
                wanted.discard(taken)
            elif step == "done" and key in processing:
                processing.discard(key)
                queue.done(key)
        for key in processing:
            queue.done(key)
        async with asyncio.timeout(1000):
            while wanted:
                key = await queue.get()
                wanted.discard(key)
                queue.done(key)

    virtual_time.run(story())
