"""Work in threads that a run which is stopped does not wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future


async def in_background[**P, T](function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """As `asyncio.to_thread`, whose threads hold the process up until they end: reading data from afar may take minutes."""
    return await asyncio.wrap_future(begin(function, *arguments, **named))


def begin[**P, T](function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Future[T]:
    """Begin such work; what is returned has its result, or its error."""
    ended: Future[T] = Future()
    ended.set_running_or_notify_cancel()  # who waits may give up; the work goes on

    def work() -> None:
        try:
            ended.set_result(function(*arguments, **named))
        except BaseException as error:  # noqa: BLE001 - the one that waits gets it
            ended.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return ended


def in_parallel[T, Result](function: Callable[[T], Result], items: Sequence[T], threads: int) -> list[Result]:
    """Return the function of each item, in their order; so many are at work at a time.

    The first error is raised, when all that had begun have ended; the others are not begun then.
    """
    results: dict[int, Result] = {}
    places, failed = iter(range(len(items))), threading.Event()

    def work() -> None:
        for place in places:  # shared: each thread takes the next one
            if failed.is_set():
                return
            try:
                results[place] = function(items[place])
            except BaseException:
                failed.set()
                raise

    errors = [one.exception() for one in [begin(work) for _ in range(min(threads, len(items)))]]
    for error in errors:
        if error is not None:
            raise error
    return [results[place] for place in range(len(items))]
