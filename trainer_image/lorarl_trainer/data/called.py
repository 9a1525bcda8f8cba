"""Calls of tools in the messages of rows: as templates take them, and marked to see what a template writes. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from lorarl_trainer.data.cells import ASSISTANT, Message, brief
from lorarl_trainer.errors import InputError

CALLS = "tool_calls"
"""The key of a message with calls."""
_OLD_CALL = "function_call"
"""What OpenAI's API had before `tool_calls`: one call."""
_NAME, _ARGUMENTS, _FUNCTION = "name", "arguments", "function"
_BESIDE = frozenset({"id", "type", "index"})
"""Keys of a call that stand beside its function in OpenAI's API."""
_FORM = '{"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}'


def as_templates_take(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its calls as chat templates take them; one without calls as it is.

    OpenAI's API writes arguments as JSON in a text, and no content beside calls. Templates would write such a text
    within quotes, so arguments are objects here, as vLLM has them when it serves the model. A call without arguments
    has an empty object, as there. Some rows have calls without `function` around; templates read that.
    """
    calls = message.get(CALLS)
    if message.get("role") != ASSISTANT or not isinstance(calls, list) or not calls:
        return dict(message)
    return {"content": "", **message, CALLS: [_nested(call) for call in calls]}


def require_calls(messages: Any, field: str, where: str) -> None:
    """Require that each call in a list of messages has a name, and arguments that are an object.

    Args:
        messages: a cell after `as_templates_take`. What is no call is checked elsewhere.
        field: the path of its column in the manifest, for errors.
        where: its row, for errors.

    Raises:
        InputError: naming the row, the call, and what it lacks.
    """
    for number, message in enumerate(messages if isinstance(messages, list) else (), start=1):
        if isinstance(message, dict) and message.get(_OLD_CALL) is not None:
            raise InputError(
                field,
                f"{_OLD_CALL} in message {number} of {where}, which no chat template writes",
                "calls in tool_calls",
                f"Write it as tool_calls: [{_FORM}], and what the function returned as a message with the role tool.",
            )
        if not isinstance(message, dict) or message.get("role") != ASSISTANT or not (calls := message.get(CALLS)):
            continue
        if not isinstance(calls, list):
            raise InputError(
                field,
                f"tool_calls {brief(calls)} in message {number} of {where}",
                "a list of calls",
                f"Write them as a list, not as JSON in a text: [{_FORM}].",
            )
        for place, call in enumerate(calls, start=1):
            if fault := _fault(call):
                found, expected, fix = fault
                raise InputError(field, f"{found} in call {place} of message {number} of {where}", expected, fix)


def _fault(call: Any) -> tuple[str, str, str] | None:
    """Return what a call has, what was expected, and what to do; None if nothing is wrong with it."""
    function = call.get(_FUNCTION) if isinstance(call, dict) else call
    if not isinstance(function, dict):
        return f"{brief(function)} as the function", "an object with name and arguments", f"Write a call as {_FORM}."
    name, arguments = function.get(_NAME), function.get(_ARGUMENTS)
    if not isinstance(name, str) or not name.strip():
        got = f"function.name {brief(name)}" if _NAME in function else "no function.name"
        return got, "the name of a tool, a text", f"Write a call as {_FORM}."
    if isinstance(arguments, dict):
        return None
    if arguments in (None, "") and (others := [key for key in function if key not in (_NAME, _ARGUMENTS)]):
        fix = f"Rename {others[0]} to arguments, or add arguments: {{}} for a call without any."
        return f"function.{others[0]} and no function.arguments", "function.arguments, a JSON object", fix
    return (
        f"function.arguments {brief(arguments)} for {name}",
        "a JSON object, or the text of one",
        'Name each argument, as in {"city": "Rome"}, with keys and texts in double quotes; {} for none.',
    )


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


def _nested(call: Any) -> Any:
    """Return a call as OpenAI's API has it, with its arguments as an object as far as they are one."""
    if not isinstance(call, dict):
        return call
    if _FUNCTION in call:
        return {**call, _FUNCTION: _parsed(call[_FUNCTION])}
    beside = {key: value for key, value in call.items() if key in _BESIDE}
    function = {key: value for key, value in call.items() if key not in _BESIDE}
    return {"type": _FUNCTION, **beside, _FUNCTION: _parsed(function)}


def _parsed(function: Any) -> Any:
    """Return a function with its arguments as an object, or as they are if they are none."""
    if not isinstance(function, dict):
        return function
    if (arguments := function.get(_ARGUMENTS)) in (None, "") and function.keys() <= {_NAME, _ARGUMENTS}:
        return {**function, _ARGUMENTS: {}}
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return function
    return {**function, _ARGUMENTS: parsed} if isinstance(parsed, dict) else function
