"""Calls of tools in the messages of rows: as chat templates take them, and whether a template writes them. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from lorarl_trainer.data.cells import ASSISTANT, Message

CALLS = "tool_calls"
"""The key of a message with calls."""
_NAME, _ARGUMENTS, _FUNCTION = "name", "arguments", "function"


def as_templates_take(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its calls as chat templates take them; one without calls as it is.

    OpenAI's API writes arguments as JSON in a text, and no content beside calls. Templates would write such a text
    within quotes, so arguments are objects here, as vLLM has them when it serves the model.
    """
    calls = message.get(CALLS)
    if message.get("role") != ASSISTANT or not isinstance(calls, list) or not calls or not all(map(_function, calls)):
        return dict(message)
    return {"content": "", **message, CALLS: [_changed(call, _parsed) for call in calls]}


def call_left_out(messages: Sequence[Message], write: Callable[[Sequence[Message]], str]) -> tuple[str, int] | None:
    """Return the first call that a template leaves out: its tool, and its place in its message; None if it has all.

    `write`: applies the template. It gets the messages with a mark in each call, which what it returns must have.
    """
    numbers, marks, marked = count(), list[tuple[str, str, int]](), list[Message]()

    def mark(function: Mapping[str, Any], place: int) -> dict[str, Any]:
        name = f"{function[_NAME]}_marked_{next(numbers)}_"
        arguments = function.get(_ARGUMENTS)
        marks.append((name, function[_NAME], place))
        if not isinstance(arguments, dict) or not arguments:
            return {**function, _NAME: name}
        own = f"marked_{next(numbers)}_"
        marks.append((own, function[_NAME], place))
        return {**function, _NAME: name, _ARGUMENTS: {**arguments, own: own}}

    for message in messages:
        calls = [_changed(call, lambda function, place=place: mark(function, place)) for place, call in _named(message)]
        marked.append({**message, CALLS: calls} if calls else message)
    if not marks:
        return None
    written = write(marked)
    return next(((tool, place) for text, tool, place in marks if text not in written), None)


def _named(message: Message) -> Iterator[tuple[int, Mapping[str, Any]]]:
    calls = message.get(CALLS)
    return ((place, call) for place, call in enumerate(calls if isinstance(calls, list) else ()) if _function(call))


def _function(call: Any) -> Mapping[str, Any] | None:
    """Return the name and the arguments of a call; None if it is none. Some write them without `function` around."""
    function = call.get(_FUNCTION, call) if isinstance(call, dict) else None
    return function if isinstance(function, dict) and isinstance(function.get(_NAME), str) else None


def _changed(call: Mapping[str, Any], change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> dict[str, Any]:
    function = _function(call)
    assert function is not None, "a call has one"
    changed = dict(change(function))
    return {**call, _FUNCTION: changed} if _FUNCTION in call else changed


def _parsed(function: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        arguments = json.loads(function.get(_ARGUMENTS, ""))
    except (TypeError, ValueError, RecursionError):
        return function
    return {**function, _ARGUMENTS: arguments} if isinstance(arguments, dict) else function
