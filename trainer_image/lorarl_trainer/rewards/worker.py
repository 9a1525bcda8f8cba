"""The program of a scoring process: calls one function on the samples that the trainer sends.

It is started by its path and imports only the standard library, so that a process needs little memory. The connection
carries tuples of plain values:

    to it:    (function, sys.path)                                   once
    from it:  ("ready", is it async)  or  ("refused", got, hint)     once
    to it:    (time limit per sample in seconds, [(number, prompt, completion, answer, row), ...])
    from it:  (number, value, cause or None, message) for each sample, as soon as it is scored

If the function is async, more samples may come while others are being scored.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import inspect
import math
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO

Reply = tuple[float, str | None, str]
"""Value, cause of failure, message."""
PARAMETERS = ("prompt", "completion", "answer", "row")


class RefusedError(Exception):
    """The function cannot be used. The arguments are what was got, and a hint."""


def main() -> None:
    """Serve until the trainer ends this process, or itself ends."""
    connection = Connection(int(sys.argv[1]))
    threading.Thread(target=_end_with_parent, args=(connection.fileno(), int(sys.argv[2])), daemon=True).start()
    faulthandler.enable()  # if the function crashes the process, its traceback goes to standard error
    name, search_path = connection.recv()
    sys.path[:] = search_path
    try:
        function = load_function(name)
    except RefusedError as error:
        connection.send(("refused", *error.args))
        return
    is_async = inspect.iscoroutinefunction(function)
    connection.send(("ready", is_async))
    with Path(os.devnull).open("w") as nowhere, contextlib.suppress(EOFError):
        (_serve_async if is_async else _serve)(connection, function, nowhere)


def load_function(name: str) -> Callable[..., Any]:
    """Import `package.module:function` and check that it can be called with PARAMETERS.

    Raises:
        RefusedError: it cannot.
    """
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:  # a user's module may raise anything, SystemExit included
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise RefusedError(
                f"{name}, but there is no module {error.name}",
                f"Put it into one of the searched folders: {', '.join(sys.path)}.",
            ) from error
        raise RefusedError(
            f"{name}, whose module fails when imported ({_describe(error)})", "Fix the module."
        ) from error
    where = getattr(module, "__file__", None) or "a folder without __init__.py"
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if function is None or not callable(function):
        existing = (
            ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
            or "none"
        )
        raise RefusedError(
            f"{name}, but {module_name} ({where}) has no such function", f"Name one of its functions ({existing})."
        )
    with contextlib.suppress(ValueError):  # some functions written in C have no readable signature
        signature = inspect.signature(function)
        try:
            signature.bind(*PARAMETERS)
        except TypeError as error:
            hint = f"Define it as {function_name}({', '.join(PARAMETERS)})."
            raise RefusedError(
                f"{name}{signature} in {where}, which cannot be called with four arguments", hint
            ) from error
    return function


def _serve(connection: Connection, function: Callable[..., Any], nowhere: TextIO) -> None:
    """Score one sample at a time. The trainer enforces the time limit: it can end this process."""
    while True:
        limit, samples = connection.recv()
        _end_after(limit * len(samples), nowhere)
        for number, *sample in samples:
            try:
                reply = check(function(*sample))
            except BaseException as error:  # noqa: BLE001  a user's function may raise anything, SystemExit included
                reply = _failed("exception", _describe(error))
            connection.send((number, *reply))
        faulthandler.cancel_dump_traceback_later()


def _serve_async(connection: Connection, function: Callable[..., Any], nowhere: TextIO) -> None:
    """Score all samples concurrently. One event loop is used throughout, so functions may keep connections in it."""
    import asyncio  # costs memory and time that sync functions need not pay

    async def score_one(limit: float, number: int, sample: Sequence[Any]) -> None:
        try:
            async with asyncio.timeout(limit) as timer:
                reply = check(await function(*sample))
        except BaseException as error:  # noqa: BLE001  a user's function may raise anything, SystemExit included
            reply = (
                _failed("timeout", f"took more than {limit:g} s")
                if timer.expired()
                else _failed("exception", _describe(error))
            )
        connection.send((number, *reply))

    async def serve() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        under_way: set[asyncio.Task[None]] = set()

        def begin(limit: float, samples: Sequence[Any]) -> None:
            _end_after(limit * len(samples), nowhere)
            for number, *sample in samples:
                task = loop.create_task(score_one(limit, number, sample))
                under_way.add(task)
                task.add_done_callback(ended)

        def ended(task: asyncio.Task[None]) -> None:
            under_way.discard(task)
            if not under_way:
                faulthandler.cancel_dump_traceback_later()

        def receive() -> None:  # in a thread, so that the trainer can send more even while the loop is busy
            with contextlib.suppress(EOFError, OSError):
                while True:
                    loop.call_soon_threadsafe(begin, *connection.recv())
            loop.call_soon_threadsafe(over.set)

        threading.Thread(target=receive, daemon=True).start()
        await over.wait()

    asyncio.run(serve())


def _end_after(seconds: float, nowhere: TextIO) -> None:
    """End this process some time after the deadline of its last sample.

    If the trainer is killed while the function holds the interpreter, no thread of ours can notice. This needs no
    thread.
    """
    faulthandler.dump_traceback_later(seconds + 5, exit=True, file=nowhere)


def check(value: Any) -> Reply:
    """Accept a function's result if it is one finite number (Python's, NumPy's, or a tensor with one element)."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        text = repr(value)
        return _failed(
            "wrong_type", f"returned {type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
        )
    if not math.isfinite(number):
        return _failed("non_finite", f"returned {number}")
    return number, None, ""


def _failed(cause: str, message: str) -> Reply:
    return math.nan, cause, message


def _describe(error: BaseException) -> str:
    """Return the last line of the traceback, and its file and line: `KeyError: 'level' (rewards.py, line 7)`."""
    message = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:  # a SyntaxError names file and line itself
        return message
    return f"{message} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def _end_with_parent(connection: int, parent: int) -> None:
    """End this process and what it started once the trainer has closed the connection, or is gone."""
    hung_up = select.poll()
    hung_up.register(connection, 0)  # no events requested: only the end of the connection is reported
    while not hung_up.poll(1000) and os.getppid() == parent:
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
