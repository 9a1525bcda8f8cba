"""Work in daemon threads: a run that is stopped does not wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future


async def in_background[**P, T](function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run a function in a daemon thread and wait for it.

    Unlike with `asyncio.to_thread`, the process can end before the thread does: reading remote data may take minutes.
    """
    return await asyncio.wrap_future(begin(function, *arguments, **named))


def begin[**P, T](function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Future[T]:
    """Start a function in a daemon thread; return the future of its result."""
    ended: Future[T] = Future()
    ended.set_running_or_notify_cancel()  # a caller may stop waiting; the work continues

    def work() -> None:
        try:
            ended.set_result(function(*arguments, **named))
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            ended.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return ended


def in_parallel[T, Result](function: Callable[[T], Result], items: Sequence[T], threads: int) -> list[Result]:
    """Call the function for each item in up to `threads` threads; return the results in the items' order.

    After the first error no further call starts. The error is raised when the calls under way have ended.
    """
    results: dict[int, Result] = {}
    indices, failed = iter(range(len(items))), threading.Event()

    def work() -> None:
        for index in indices:  # shared: each thread takes the next one
            if failed.is_set():
                return
            try:
                results[index] = function(items[index])
            except BaseException:
                failed.set()
                raise

    errors = [future.exception() for future in [begin(work) for _ in range(min(threads, len(items)))]]
    for error in errors:
        if error is not None:
            raise error
    return [results[index] for index in range(len(items))]
