"""Calls of tools in the messages of rows: as templates take them, and marked to see what a template writes. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

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


def with_texts(messages: Sequence[Message]) -> list[Message]:
    """Return messages whose calls have their arguments as JSON in a text."""

    def text(function: Mapping[str, Any]) -> dict[str, Any]:
        arguments = function.get(_ARGUMENTS)
        own = {_ARGUMENTS: json.dumps(arguments, ensure_ascii=False)} if isinstance(arguments, dict) else {}
        return {**function, **own}

    return [
        {**message, CALLS: [_changed(call, text) for _, call in calls]} if calls else message
        for message in messages
        for calls in [_calls(message)]
    ]


class Mark(NamedTuple):
    """A text that stands in a call in place of another one, and the call's tool and its place in its message."""

    text: str
    tool: str
    place: int


def with_marks(messages: Sequence[Message]) -> tuple[list[Message], list[Mark]]:
    """Return messages with a mark in the name of each call, and in its arguments; a template must write all of them."""
    marks: list[Mark] = []

    def mark(place: int, function: Mapping[str, Any]) -> dict[str, Any]:
        tool, arguments = function[_NAME], function.get(_ARGUMENTS)
        name, own = (Mark(f"{tool}_marked_{len(marks) + more}_", tool, place) for more in range(2))
        if not isinstance(arguments, dict) or not arguments:
            marks.append(name)
            return {**function, _NAME: name.text}
        marks.extend((name, own))
        return {**function, _NAME: name.text, _ARGUMENTS: {**arguments, own.text: own.text}}

    marked = [
        {**message, CALLS: [_changed(call, partial(mark, place)) for place, call in calls]} if calls else message
        for message in messages
        for calls in [_calls(message)]
    ]
    return marked, marks


def _calls(message: Message) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the calls of a message with their places."""
    calls = message.get(CALLS)
    return [(place, call) for place, call in enumerate(calls if isinstance(calls, list) else ()) if _function(call)]


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
