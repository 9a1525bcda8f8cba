"""The program of tools: it imports a user's functions once, and runs the calls of each episode in a fork of itself.

It runs as `worker.py` beside it does. What a call leaves behind in a module is there for the next one of its episode.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import signal
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from transformers.utils import chat_template_utils

from lorarl_trainer.rewards.environment.worker import (
    FAILED,
    MALFORMED,
    WRONG_TYPE,
    awaited,
    error_text,
    failed,
    main,
    unfit,
)
from lorarl_trainer.rewards.worker import RefusedError, load_named, logged, shown

_OF_JSON = (str, int, float, bool, type(None), list, dict, tuple, Any, object, ...)
"""Types that a call can have. A tuple comes as a list."""
_EXPECTED = (
    "it must return a text, or what JSON has: numbers, texts, booleans, None, lists, and dicts with texts as keys. "
    "Return bytes, sets, dates and the like as a text, for example str(date) or sorted(names)"
)


class Toolbox:
    """The functions that the model may call in an episode, by their names.

    Attributes:
        about: their JSON schemas, as chat templates take them.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]], about: Sequence[Mapping[str, Any]]) -> None:
        """Offer functions that these schemas describe."""
        self._functions, self.about = functions, about

    def __call__(self) -> Toolbox:
        """Return the player of an episode, which is its own process."""
        return self

    def call(
        self, name: str, arguments: Mapping[str, Any], seconds: float, loop: asyncio.AbstractEventLoop
    ) -> dict[str, Any]:
        """Return the text that answers a call, and why it is an error, if it is one."""
        function = self._functions[name]
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            return error_text(f"{name}: {error}", MALFORMED)
        try:
            returned = _called(function, arguments, seconds, loop)
        except _CutError:
            return error_text(f"{name} took more than {seconds:g} s", FAILED)
        except BaseException as error:  # noqa: BLE001  a user's function may raise anything, SystemExit included
            logged(error, __file__)
            return error_text(f"{type(error).__name__}: {error}", FAILED)
        try:
            text = returned if isinstance(returned, str) else json.dumps(returned, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            return failed(WRONG_TYPE, f"{name} returned {type(returned).__name__} {shown(returned)}; {_EXPECTED}")
        if not isinstance(returned, str) and not _is_json(returned):
            # The arguments may have led to it, as to an exception.
            return error_text(f"{name} returned {shown(returned)}, with a number that is not finite", FAILED)
        if wrong := unfit(name, text):
            return error_text(wrong["failed"][1], FAILED)
        return {"text": text, "fault": ""}


def _is_json(value: Any) -> bool:
    """Return whether all numbers of a value are finite. Python would write others as NaN, which no JSON has."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


class _CutError(BaseException):
    """A call took too long. Functions that expect exceptions do not expect this one."""


def _called(
    function: Callable[..., Any], arguments: Mapping[str, Any], seconds: float, loop: asyncio.AbstractEventLoop
) -> Any:
    """Call a function, and interrupt it after so many seconds."""

    def cut(*_: object) -> None:
        raise _CutError

    task = None
    signal.signal(signal.SIGALRM, cut)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        returned = function(**arguments)
        if not inspect.isawaitable(returned):
            return returned
        task = loop.create_task(awaited(returned))
        return loop.run_until_complete(task)
    except _CutError:
        if task is not None:
            task.cancel()  # takes effect in the next call
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def load_tools(names: str, places: Sequence[str], source: str) -> Toolbox:
    """Import functions, whose names have commas between them, and describe them by signature and docstring.

    Raises:
        RefusedError: one cannot be used; see `load_named` for the arguments.
    """
    chat_template_utils.is_torch_available = lambda: False  # or it imports torch, for tensors as arguments
    functions: dict[str, Callable[..., Any]] = {}
    about = []
    for name in names.split(","):
        own = name.partition(":")[2]
        define = f"Define it as def {own}(query: str) -> str, with a docstring that describes it and each argument."
        function, where = load_named(name, places, source, define)
        try:
            schema = chat_template_utils.get_json_schema(function)
        except Exception as error:
            got = f"{name} in {where}, which cannot be described to the model ({' '.join(str(error).split())})"
            hint = "Give each argument a type hint, and the docstring a line for each under Args:."
            raise RefusedError(got, hint) from error
        if unfit := _unfit(function):
            raise RefusedError(f"{name} in {where}, {unfit[0]}", unfit[1])
        called = schema["function"]["name"]
        if called in functions:
            raise RefusedError(f"two functions named {called}", "Name each function once, and rename one of two.")
        functions[called] = function
        about.append(json.loads(json.dumps(schema)))
    return Toolbox(functions, about)


def _unfit(function: Callable[..., Any]) -> tuple[str, str] | None:
    """Return which argument no call can give, since calls have JSON by name, and a fix; None if there is none."""
    hints = get_type_hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            return f"whose {parameter} cannot be given by its name", "Write each argument by its own name."
        if (foreign := _foreign(hints[name])) is not None:
            of = getattr(foreign, "__name__", str(foreign))
            hint = f"Take {name} as str, int, float, bool, list or dict, and make a {of} of it in the function."
            return f"whose {name} is of the type {of}, which no JSON has", hint
    return None


def _foreign(hint: Any) -> Any:
    """Return a part of a type hint that JSON has no values of; None if there is none."""
    if hint in _OF_JSON or is_typeddict(hint) or get_origin(hint) is Literal:
        return None
    if get_origin(hint) in (list, dict, tuple, Union, UnionType):
        return next((found for part in get_args(hint) if (found := _foreign(part)) is not None), None)
    return hint


if __name__ == "__main__":
    main(load_tools)
