"""The program of a scoring process: calls one function on the samples that the trainer sends.

It is started by its path and imports only the standard library, so that a process needs little memory. The connection
carries tuples of plain values:

    to it:    (function, sys.path, its folders with a user's code, the source that they are copies of)   once
    from it:  ("importing", where the import is)                     once, if that takes long
    from it:  ("ready", is it async)  or  ("refused", got, hint)     once
    to it:    (time limit per sample in seconds, [(number, a pickled sample), ...])
    from it:  (number, value, cause or None, message, components) for each sample, as soon as it is scored

A sample is (prompt, completion, answer, row, truncated). If the function is async, more samples may come while others
are being scored.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import inspect
import math
import os
import pickle
import re
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    import io
    from types import FrameType, ModuleType

Reply = tuple[float, str | None, str, Mapping[str, float]]
"""Value, cause of failure, message, components by name."""
PARAMETERS = ("prompt", "completion", "answer", "row")
TRUNCATED = "truncated"
"""A keyword for functions that have such a parameter: whether the completion was cut off."""
SCORE = "score"
"""The key of a mapping that is the reward; the other keys are its components."""
MOST_REWARD = 1e30
"""Advantages are float32: differences and sums of larger rewards would be infinite in them."""
MOST_COMPONENTS = 32
"""Each name is a column of metrics.jsonl and a curve."""
NO_ANSWER = "answer is None: the row has none, it is no text or number, or answerField names another column"
SLOW_SECONDS = 3.0
"""An import that takes longer is reported, with the line where it is."""
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What a component may be called."""
_printed: set[tuple[Any, ...]] = set()


class RefusedError(Exception):
    """The function cannot be used. The arguments are what was got, and a hint."""


class FailedError(Exception):
    """An episode failed. The arguments are a cause and a message."""


def main() -> None:
    """Serve until the trainer ends this process, or itself ends."""
    connection = Connection(int(sys.argv[1]))
    threading.Thread(target=end_with_parent, args=(connection.fileno(), int(sys.argv[2])), daemon=True).start()
    faulthandler.enable()  # if the function crashes the process, its traceback goes to standard error
    for stream in (sys.stdout, sys.stderr):  # whole lines, since several processes may write to one file
        cast("io.TextIOWrapper", stream).reconfigure(line_buffering=True, errors="backslashreplace")
    if (function := loaded(connection, load_function)) is None:
        return
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    connection.send(("ready", is_async))
    takes_truncated = takes(function, TRUNCATED)

    def call(prompt: Any, completion: str, answer: str | None, row: Any, truncated: bool) -> Any:
        return function(prompt, completion, answer, row, **({TRUNCATED: truncated} if takes_truncated else {}))

    with Path(os.devnull).open("w") as nowhere, contextlib.suppress(EOFError):
        (_serve_async if is_async else _serve)(connection, call, nowhere)


def loaded(connection: Connection, load: Callable[[str, Sequence[str], str], Callable[..., Any]]) -> Any:
    """Return what the trainer names in its first message; None if it cannot be used, which is reported."""
    # Inherited from a trainer where Ray's subreaper ignores it, so that exit codes of the user's programs are lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    name, search_path, places, source = connection.recv()
    sys.path[:] = search_path
    try:
        with _reported_if_slow(connection):
            return load(name, places, source)
    except RefusedError as error:
        connection.send(("refused", *error.args))
        return None


@contextlib.contextmanager
def _reported_if_slow(connection: Connection) -> Iterator[None]:
    """Send once where this thread is, if the block takes long. Nothing is sent after the block."""
    over, sending, here = threading.Event(), threading.Lock(), threading.get_ident()

    def report() -> None:
        if not over.wait(SLOW_SECONDS):
            with sending:
                if not over.is_set() and (frame := sys._current_frames().get(here)) is not None:
                    connection.send(("importing", _place(frame)))

    threading.Thread(target=report, daemon=True).start()
    try:
        yield
    finally:
        with sending:
            over.set()


def _place(frame: FrameType) -> str:
    """Return file and line of the innermost code that is not Python's own import system."""
    at: FrameType | None = frame
    while at is not None and "importlib" in at.f_code.co_filename:
        at = at.f_back
    at = at or frame
    return f"{Path(at.f_code.co_filename).name}, line {at.f_lineno}"


def load_function(name: str, places: Sequence[str] = (), source: str = "") -> Callable[..., Any]:
    """Import `package.module:function` and check that it can be called with PARAMETERS, and TRUNCATED if it has that.

    Raises:
        RefusedError: it cannot; see `load_named` for the arguments.
    """
    define = _define(name.partition(":")[2])
    function, where = load_named(name, places, source, define)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise RefusedError(f"{name} in {where}, which is a generator and returns no number", "Use return.")
    with contextlib.suppress(ValueError):  # some functions written in C have no readable signature
        signature = inspect.signature(function)
        try:
            signature.bind(*PARAMETERS, **({TRUNCATED: False} if takes(function, TRUNCATED) else {}))
        except TypeError as error:
            raise RefusedError(
                f"{name}{signature} in {where}, which cannot be called with four arguments", define
            ) from error
    return function


def load_named(
    name: str, places: Sequence[str], source: str, define: str, *, wanted: str = "function"
) -> tuple[Callable[..., Any], str]:
    """Import `package.module:NAME`; return what can be called by that name, and the file that it is in.

    Args:
        name: of a function or a class.
        places: folders where a user's own code may be, for errors.
        source: the source that these are copies of; empty without one.
        define: what to do if the module has nothing that can be called.
        wanted: what it should be.

    Raises:
        RefusedError: it cannot be imported.
    """
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:  # a user's module may raise anything, SystemExit included
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (stem := module_name.removesuffix(".py")) != module_name:
            raise RefusedError(f"{name}, which names a file", f"Name its module: {stem}:{function_name}.") from error
        if missing and f"{module_name}.".startswith(f"{missing}."):
            where = _where_to_put(missing, places, source)
            raise RefusedError(
                f"{name}, but {f'{source} has' if source else 'there is'} no module {missing}", where
            ) from error
        hint = "Fix the module."
        if missing:
            hint = f"Install the package of {missing}: lorarl env add PACKAGE."
            if source:
                hint = f"Put a wheel with {missing} into {source}, or use a trainer image that has its package."
        elif isinstance(error, PermissionError):
            hint = f"Let this user read it: chmod u+r {error.filename}."
        raise RefusedError(f"{name}, whose module fails when imported ({_describe(error)})", hint) from error
    where = getattr(module, "__file__", None) or "a folder without __init__.py"
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if function is None or not callable(function):
        existing = _functions_of(module)
        other = f"has an object of type {type(function).__name__} of this name"
        lacks = f"has no such {wanted}" if function is None else other
        plural = {"function": "functions", "class": "classes"}[wanted]
        hint = f"Name one of its {plural} ({', '.join(existing)})." if existing else define
        raise RefusedError(f"{name}, but {module_name} ({where}) {lacks}", hint)
    return function, where


def _functions_of(module: ModuleType) -> list[str]:
    """Return the names of the functions that a module defines, or else of those that it imports."""
    public = {key: value for key, value in vars(module).items() if callable(value) and not key.startswith("_")}
    own = [key for key, value in public.items() if getattr(value, "__module__", None) == module.__name__]
    return own or list(public)


def _define(function: str) -> str:
    return f"Define it as {function}({', '.join(PARAMETERS)})."


def _where_to_put(module: str, places: Sequence[str], source: str) -> str:
    import difflib  # only now: it costs memory

    there = [path.stem for place in places for path in Path(place).glob("*.py")]
    near = difflib.get_close_matches(module, there, n=1)
    meant = f"Did you mean {near[0]}? Otherwise put" if near else "Put"
    if source:
        return f"{meant} {module}.py into {source}, or a wheel that has it."
    return f"{meant} {module} into {' or '.join(places)}, or install its package: lorarl env add PACKAGE."


def takes(function: Callable[..., Any], keyword: str) -> bool:
    """Return whether the function has this parameter beside those that PARAMETERS fill.

    Arbitrary keywords (`**options`) do not count: such functions were written for the four arguments alone.
    """
    try:
        signature = inspect.signature(function)
        filled = signature.bind_partial(*PARAMETERS).arguments
    except (TypeError, ValueError):
        return False
    parameter = signature.parameters.get(keyword)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return parameter is not None and parameter.kind in named and keyword not in filled


def _serve(connection: Connection, function: Callable[..., Any], nowhere: TextIO) -> None:
    """Score one sample at a time. The trainer enforces the time limit: it can end this process."""
    while True:
        limit, samples = connection.recv()
        _end_after(limit * len(samples), nowhere)
        for number, packed in samples:
            sample = pickle.loads(packed)
            try:
                reply = check(function(*sample))
            except BaseException as error:  # noqa: BLE001  a user's function may raise anything, SystemExit included
                reply = _failed("exception", _logged(error, sample))
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
                _failed("timeout", f"took more than {limit:g} s, the reward's timeoutSeconds")
                if timer.expired()
                else _failed("exception", _logged(error, sample))
            )
        connection.send((number, *reply))

    async def serve() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        under_way: set[asyncio.Task[None]] = set()

        def begin(limit: float, samples: Sequence[Any]) -> None:
            _end_after(limit * len(samples), nowhere)
            for number, packed in samples:
                task = loop.create_task(score_one(limit, number, pickle.loads(packed)))
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


def check(value: Any, key: str = SCORE) -> Reply:
    """Accept a function's result: one finite number, or a mapping with `key` and components, all finite numbers."""
    if value is None:
        return _failed("wrong_type", "returned None: some way through the function ends without a return")
    if not isinstance(value, Mapping):
        number, cause, message = _number(value)
        return number, cause, message, {}
    if key not in value:
        return _failed("wrong_type", f"returned a mapping without {key!r}: {shown(value)}")
    if len(value) - 1 > MOST_COMPONENTS:
        return _failed("wrong_type", f"returned {len(value) - 1} components; at most {MOST_COMPONENTS} are recorded")
    numbers = {}
    for name, part in value.items():
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            return _failed("wrong_type", f"returned a component {name!r}; use at most 64 of A-Z a-z 0-9 _ . - in names")
        number, cause, message = _number(part)
        if cause is not None:
            return _failed(cause, f"{message} as {name!r}")
        numbers[name] = number
    return numbers.pop(key), None, "", numbers


def _number(value: Any) -> tuple[float, str | None, str]:
    """Return a finite number (Python's, NumPy's, or a tensor with one element), or why it is none."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        number = float(value)
    except OverflowError:
        return math.nan, "non_finite", f"returned {type(value).__name__}, which is too large for a float"
    except (TypeError, ValueError, RuntimeError):
        one = "; it is called for one completion at a time" if isinstance(value, list | tuple) else ""
        if inspect.iscoroutine(value):
            value.close()  # or Python warns that nothing awaited it
            one = "; define the function, or what decorates it, with async def"
        return math.nan, "wrong_type", f"returned {type(value).__name__} {shown(value)}{one}"
    if not math.isfinite(number):
        return math.nan, "non_finite", f"returned {number}"
    if abs(number) > MOST_REWARD:
        return math.nan, "non_finite", f"returned {number:g}, which is beyond {MOST_REWARD:g}"
    return number, None, ""


def shown(value: Any) -> str:
    """Return the beginning of a value as Python writes it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _failed(cause: str, message: str) -> Reply:
    return math.nan, cause, message, {}


def _logged(error: BaseException, sample: Sequence[Any]) -> str:
    """Describe a sample's exception; see `logged`."""
    described = logged(error, __file__)
    answer = sample[PARAMETERS.index("answer")]
    stumbled = answer is None and isinstance(error, TypeError | AttributeError) and "NoneType" in str(error)
    return f"{described}; {NO_ANSWER}" if stumbled else described


def logged(error: BaseException, ours: str) -> str:
    """Describe an exception of a user's code, and print its traceback unless one from the same line was printed.

    `ours`: the file that called the code, whose frames say nothing.
    """
    frames = traceback.extract_tb(error.__traceback__)
    place = (type(error), frames[-1].filename, frames[-1].lineno) if frames else (type(error),)
    if place not in _printed:
        _printed.add(place)
        own = error.__traceback__
        while own is not None and own.tb_next is not None and own.tb_frame.f_code.co_filename == ours:
            own = own.tb_next  # the user's part
        traceback.print_exception(type(error), error, own)
    return _describe(error, ours)


def _describe(error: BaseException, ours: str = __file__) -> str:
    """Return the last line of the traceback, and its file and line: `KeyError: 'level' (rewards.py, line 7)`."""
    message = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    # A SyntaxError names file and line itself, and a module that cannot be read has none.
    if isinstance(error, SyntaxError) or not frames or frames[-1].filename == ours:
        return message
    return f"{message} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def end_with_parent(connection: int, parent: int, before: Callable[[], None] = lambda: None) -> None:
    """End this process and what it started once the trainer has closed the connection, or the parent is gone."""
    hung_up = select.poll()
    hung_up.register(connection, 0)  # no events requested: only the end of the connection is reported
    while not hung_up.poll(1000) and os.getppid() == parent:
        pass
    before()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
