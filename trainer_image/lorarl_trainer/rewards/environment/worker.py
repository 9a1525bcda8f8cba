"""The program of an environment: it imports a user's class once, and plays each episode in a fork of itself.

So an episode that hangs, crashes or uses up its memory costs itself alone. Python's global random numbers are its own,
and episodes begin in no time. It is started by its path and imports only the standard library at first. Its connection
carries what `lorarl_trainer.rewards.worker` describes up to "ready", and then sockets, one for each episode:

    to an episode:    pickled (seed,), then (RESET, row) and (STEP, text), or (CALL, (name, arguments, seconds)), or
                      (PLAY, (row, base URL, key, model))
    from an episode:  a line of JSON for each: {"opening": ...}, {"text", "reward", "done", "components"},
                      {"text", "fault"}, {"reward", "components"}, {"failed": [cause, message]}, or at last
                      {"ended": how the process ended}

With tools, an agent or a taskset in place of a class, the program is `tools.py`, `agent.py` or `taskset.py`, which run
as this one does.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import inspect
import json
import os
import pickle
import random
import resource
import select
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import TYPE_CHECKING, Any, cast

from lorarl_trainer.rewards.environment.descendants import (
    adopt_orphans,
    children_here,
    end_descendants,
    end_orphans,
    end_with_descendants,
    mark,
    wait_for_all,
)
from lorarl_trainer.rewards.worker import (
    FailedError,
    RefusedError,
    check,
    end_with_parent,
    load_named,
    loaded,
    logged,
    shown,
)

if TYPE_CHECKING:
    import io

RESET, STEP, CALL, PLAY = "reset", "step", "call", "play"
TEXT, REWARD, DONE = "text", "reward", "done"
MOST_CHARACTERS = 1_000_000
"""A text with more is a mistake: no model reads it."""
TOO_LONG, WRONG_TYPE = "too_long", "wrong_type"
MALFORMED, FAILED = "malformed", "failed"
"""Why a call was answered with an error: the model called a tool wrongly, or the tool did not come to an end."""
_EPISODE = "LORARL_EPISODE"
"""Variable that marks what an episode has started."""
_A_MAPPING = f"step must return a mapping with {TEXT}, {REWARD} or {DONE}"


def main(load: Callable[[str, Sequence[str], str], Callable[[], Any]]) -> None:
    """Play episodes until the trainer ends this process, or itself ends.

    `load`: returns what makes the player of an episode; its attribute `about` goes to the trainer.
    """
    connection, children = Connection(int(sys.argv[1])), dict[int, tuple[int, int]]()
    adopt_orphans()

    def end_children() -> None:
        end_descendants(os.getpid())

    watched = connection.fileno(), int(sys.argv[2]), end_children
    threading.Thread(target=end_with_parent, args=watched, daemon=True).start()
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        cast("io.TextIOWrapper", stream).reconfigure(line_buffering=True, errors="backslashreplace")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each episode takes two
    if (kind := loaded(connection, load)) is None:
        return
    connection.send(("ready", getattr(kind, "about", None) if load is not load_class else None))
    with contextlib.suppress(EOFError):
        _serve(connection, kind, children)
    end_children()


def load_class(name: str, places: Sequence[str], source: str) -> Callable[[], Any]:
    """Import `package.module:Class` and check that it has reset(row) and step(text).

    Raises:
        RefusedError: it cannot be used; see `load_named` for the arguments.
    """
    own = name.partition(":")[2]
    define = f"Define class {own} with reset(self, row) and step(self, text)."
    kind, where = load_named(name, places, source, define, wanted="class")
    if not inspect.isclass(kind):
        raise RefusedError(f"{name} in {where}, which is no class", "Name the class.")
    for method, argument in ((RESET, "row"), (STEP, "text")):
        define = f"Define {method}(self, {argument}) in {own}."
        if not callable(function := getattr(kind, method, None)):
            raise RefusedError(f"{name} in {where}, which has no method {method}", define)
        try:
            inspect.signature(function).bind(None, argument)
        except TypeError as error:
            raise RefusedError(f"{name} in {where}, whose {method} does not take one argument", define) from error
    with contextlib.suppress(ValueError):  # some classes written in C have no readable signature
        try:
            inspect.signature(kind).bind()
        except TypeError as error:
            hint = "Give its arguments defaults, or read them from the row."
            raise RefusedError(f"{name} in {where}, which cannot be made without arguments", hint) from error
    return kind


def _serve(connection: Connection, kind: Callable[[], Any], children: dict[int, tuple[int, int]]) -> None:
    """Fork for each socket that comes, and say on it how the fork ended. `children` has the forks that run.

    Each key is a descriptor of the fork's process, and each value its id and its socket.
    """
    poller, own = select.poll(), children_here()  # those of the module
    poller.register(connection.fileno(), select.POLLIN)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor == connection.fileno():
                handle = recv_handle(connection)
                if (pid := _fork(handle)) is None:
                    continue
                if pid == 0:
                    _become_episode(handle, connection, children, kind)
                process = os.pidfd_open(pid)
                children[process] = pid, handle
                poller.register(process, select.POLLIN)
                poller.register(handle, 0)  # its hang-up alone
            elif descriptor in children:
                pid, handle = children.pop(descriptor)
                poller.unregister(descriptor)
                with contextlib.suppress(KeyError):
                    poller.unregister(handle)
                end_orphans(_EPISODE, pid, {*own, *(other for other, _ in children.values())})
                _, status = os.waitpid(pid, 0)
                with socket.socket(fileno=handle) as episode, contextlib.suppress(OSError):
                    _say(episode, {"ended": _words(os.waitstatus_to_exitcode(status))})
                os.close(descriptor)
            else:  # the trainer wants no more of the episode
                for pid in [pid for pid, handle in children.values() if handle == descriptor]:
                    poller.unregister(descriptor)
                    end_with_descendants(pid)


def _fork(handle: int) -> int | None:
    """Fork, and return what `os.fork` does; None if the machine has no room for a process, which is said."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the other thread only waits
            return os.fork()
    except OSError as error:
        with socket.socket(fileno=handle) as episode, contextlib.suppress(OSError):
            _say(episode, {"ended": f"could not be started ({error})"})
        return None


def _words(code: int) -> str:
    return f"exited with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


def _become_episode(
    handle: int, connection: Connection, children: Mapping[int, tuple[int, int]], kind: Callable[[], Any]
) -> None:
    """Play one episode in this process, which is a new fork, and end it."""
    code = 1
    try:
        parent = os.getppid()
        os.setsid()  # with all that it starts, it can be ended as one
        adopt_orphans()
        mark(_EPISODE)
        for process, (_, other) in children.items():
            os.close(process)
            os.close(other)
        connection.close()
        watched = handle, parent, lambda: wait_for_all(end_descendants(os.getpid()))
        threading.Thread(target=end_with_parent, args=watched, daemon=True).start()
        with socket.socket(fileno=handle) as episode, contextlib.suppress(EOFError, OSError):
            _play(episode, kind)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _play(episode: socket.socket, kind: Callable[[], Any]) -> None:
    incoming = episode.makefile("rb")
    (seed,) = pickle.load(incoming)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)
    loop = asyncio.new_event_loop()
    player: Any = None

    def answer(method: str, given: Any) -> dict[str, Any]:
        nonlocal player
        player = kind() if player is None else player
        if method in (CALL, PLAY):
            reply: dict[str, Any] = getattr(player, method)(*given, loop)
            return reply
        returned = getattr(player, method)(given)
        if inspect.isawaitable(returned):
            returned = loop.run_until_complete(awaited(returned))
        return _opening(returned) if method == RESET else turn(returned)

    while True:
        method, given = pickle.load(incoming)
        try:
            reply = answer(method, given)
        except FailedError as error:
            reply = failed(*error.args)
        except Exception as error:  # noqa: BLE001  a user's class may raise anything
            reply = failed("exception", f"{method}: {logged(error, __file__)}")
        _say(episode, reply)


async def awaited(returned: Any) -> Any:
    """Return what something that can be awaited comes to."""
    return await returned


def _say(episode: socket.socket, reply: Mapping[str, Any]) -> None:
    episode.sendall(json.dumps(reply).encode() + b"\n")


def _opening(returned: Any) -> dict[str, Any]:
    """Accept what opens an episode: a text, or chat messages."""
    if isinstance(returned, str) and returned:
        return unfit(RESET, returned) or {"opening": returned}
    if isinstance(returned, list | tuple) and returned and all(map(_is_message, returned)):
        messages = [{key: str(message[key]) for key in ("role", "content")} for message in returned]
        return unfit(RESET, "".join(message["content"] for message in messages)) or {"opening": messages}
    expected = "a text, or a list of messages with role and content, both texts"
    return failed(WRONG_TYPE, f"reset returned {shown(returned)}; it must return {expected}")


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def turn(returned: Any) -> dict[str, Any]:
    """Accept what `step` returned, and return it for the trainer, or why it is of no use."""
    if returned is None:
        return failed(WRONG_TYPE, f"step returned None; {_A_MAPPING}")
    if not isinstance(returned, Mapping) or not {TEXT, REWARD, DONE} & set(returned):
        return failed(WRONG_TYPE, f"step returned {shown(returned)}; {_A_MAPPING}")
    done, text, reward = returned.get(DONE, False), returned.get(TEXT), returned.get(REWARD)
    if not isinstance(done, bool):
        return failed(WRONG_TYPE, f"step returned {shown(done)} as {DONE!r}; it must be True or False")
    if text is None and done:
        text = ""
    if not isinstance(text, str):
        return failed(WRONG_TYPE, f"step returned {shown(text)} as {TEXT!r}, and is not {DONE}; it must be a text")
    if too_long := unfit(STEP, text):
        return too_long
    components = {key: value for key, value in returned.items() if key not in (TEXT, DONE, REWARD)}
    value, cause, message, numbers = check({REWARD: 0.0 if reward is None else reward, **components}, REWARD)
    if cause is not None:
        return failed(cause, f"step {message}")
    return {TEXT: text, DONE: done, REWARD: None if reward is None else value, "components": dict(numbers)}


def unfit(method: str, text: str) -> dict[str, Any] | None:
    """Return why a text is of no use to a model; None if it is of use."""
    if len(text) <= MOST_CHARACTERS:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return failed(WRONG_TYPE, f"{method} returned a text that is no Unicode ({error.reason})")
        return None
    return failed(TOO_LONG, f"{method} returned a text of {len(text):,} characters; at most {MOST_CHARACTERS:,}")


def error_text(message: str, fault: str) -> dict[str, Any]:
    """Return an error that answers a tool call, as the model sees it."""
    return {"text": f"Error: {message}"[:1000].encode(errors="replace").decode(), "fault": fault}


def failed(cause: str, message: str) -> dict[str, Any]:
    """Return the reply that an episode failed."""
    return {"failed": [cause, message]}


if __name__ == "__main__":
    main(load_class)
