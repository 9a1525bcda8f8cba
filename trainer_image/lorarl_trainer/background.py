"""Work in a thread that a run which is stopped does not wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
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
