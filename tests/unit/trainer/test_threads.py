"""Work in threads: several items at a time, in order, and what an error stops."""

from __future__ import annotations

import threading

import pytest

from lorarl_trainer.threads import in_parallel


@pytest.mark.parametrize("threads", [1, 3, 100])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    assert in_parallel(lambda number: number * number, range(50), threads) == [number * number for number in range(50)]
    assert in_parallel(str, [], threads) == []


def test_so_many_are_at_work_at_a_time_and_no_more() -> None:
    together, lock = threading.Barrier(3, timeout=30), threading.Lock()
    working, most = 0, 0

    def work(_: int) -> None:
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        together.wait()
        with lock:
            working -= 1

    in_parallel(work, range(12), 3)
    assert most == 3


def test_an_error_is_raised_when_what_had_begun_has_ended() -> None:
    failed = threading.Event()
    ended = []

    def work(number: int) -> None:
        if number == 1:
            failed.set()
            raise ValueError("a bad one")
        assert failed.wait(30)
        ended.append(number)

    with pytest.raises(ValueError, match="a bad one"):
        in_parallel(work, range(2), 2)
    assert ended == [0]


def test_nothing_is_begun_after_an_error() -> None:
    begun = []

    def work(number: int) -> None:
        begun.append(number)
        if number == 1:
            raise ValueError("a bad one")

    with pytest.raises(ValueError, match="a bad one"):
        in_parallel(work, range(100), 1)
    assert begun == [0, 1]
