"""Finds the tool calls in a turn of the model, as its family writes them.

Transformers parses them (`parse_response`): a schema with regular expressions says where calls are and what is in them.
A tokenizer may bring its family's schema; those of families whose tokenizers do not are here.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from lorarl_api.v1alpha1 import ToolFormat
from lorarl_trainer.errors import InputError

type Tools = Sequence[Mapping[str, Any]]
"""JSON schemas of functions, as chat templates take them."""

_FIELD = "spec.environment.toolFormat"
_BLOCKS = {"type": "array", "x-regex-iterator": r"<tool_call>(.*?)(?:</tool_call>|\Z)"}
_AS_JSON = {"type": "object", "x-parser": "json"}
_NAME, _ARGUMENTS = {"type": "string"}, {"type": "object"}
_TEXT = ("string",)
_OF_VALUES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array"}


def _schema(calls: Mapping[str, Any], items: Mapping[str, Any]) -> dict[str, Any]:
    """Return a response schema. Calls within a thought are no calls."""
    after_thoughts = r"^(?:.*</think>)?(.*)$"
    return {"type": "object", "x-regex": after_thoughts, "properties": {"tool_calls": {**calls, "items": items}}}


def _marked(name: str, argument: str) -> dict[str, Any]:
    """Return the schema of a call whose parts are between marks.

    A pattern looks at each character a few times, whatever the model writes. So names have no `<`, where the next mark
    begins, and an argument without an end takes the rest of the call, which is then malformed. Otherwise each mark
    would be searched for its end up to the end of the turn.
    """
    properties = {"name": _NAME | {"x-regex": name}, "arguments": _ARGUMENTS | {"x-regex-key-value": argument}}
    return {"type": "object", "properties": properties, "required": ["name"]}


SCHEMAS: dict[ToolFormat, dict[str, Any]] = {
    "hermes": _schema(
        _BLOCKS,
        _AS_JSON | {"properties": {"name": _NAME, "arguments": _ARGUMENTS}, "required": ["name", "arguments"]},
    ),
    "qwen3_xml": _schema(
        _BLOCKS,
        _marked(
            r"<function=([^<>\n]+)>",
            r"<parameter=(?P<key>[^<>\n]+)>\n?(?:(?P<value>.*?)\n?</parameter>|.*\Z)",
        ),
    ),
    "glm45": _schema(
        _BLOCKS,
        _marked(
            r"^\s*([^\s<]+)",
            r"<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>(?:(?P<value>.*?)</arg_value>|.*\Z)",
        ),
    ),
    "llama3_json": _schema(
        {
            "type": "array",
            "x-regex-substitutions": [[r"^\s*<\|python_tag\|>", ""]],
            "x-regex-iterator": r'^\s*(\{\s*"(?:name|type)".*)$',
        },
        _AS_JSON | {"properties": {"name": _NAME, "parameters": _ARGUMENTS}, "required": ["name", "parameters"]},
    ),
}
_MARKS: dict[str, ToolFormat] = {
    "<arg_key>": "glm45",
    "<function=": "qwen3_xml",
    "<tool_call>": "hermes",
    "<|python_tag|>": "llama3_json",
}
"""What the chat template of a family has, and none before it."""


@dataclass(frozen=True)
class ToolCall:
    """A call that the model wrote.

    Attributes:
        fault: what is wrong with it; empty if nothing is. Then `name` is of a tool.
    """

    name: str = ""
    arguments: Mapping[str, Any] | None = None
    fault: str = ""


class CallParser:
    """Finds tool calls in turns.

    Attributes:
        name: of the format, or whose it is.
    """

    def __init__(self, tokenizer: Any, tools: Tools, chosen: ToolFormat | None = None) -> None:
        """Parse as the tokenizer's family writes calls of these tools, or as `chosen` says.

        Raises:
            InputError: neither names a format.
        """
        schema, self.name = None if chosen else _own_schema(tokenizer), "the tokenizer's response_schema"
        if schema is None:
            schema = SCHEMAS[family := chosen or _found(tokenizer)]
            self.name = family
        calls = schema["properties"]["tool_calls"]
        self._items: Mapping[str, Any] = calls["items"]
        # Each call is parsed by itself, so that a malformed one costs no other.
        apart = {key: value for key, value in calls.items() if key != "items"} | {"items": {}}
        self._schema = {**schema, "properties": {"tool_calls": apart}}
        self._parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}

    def calls(self, turn: str) -> list[ToolCall]:
        """Return the calls of a turn, which has its special tokens, but for the one that ended it."""
        from transformers.utils.chat_parsing_utils import recursive_parse

        try:
            found: Mapping[str, Any] = recursive_parse(turn, self._schema) or {}
        except (ValueError, TypeError) as error:  # a schema of a tokenizer may expect more of a turn
            return [ToolCall(fault=f"the tool call is malformed: {_reason(error)}")]
        return [self._call(raw, recursive_parse) for raw in found.get("tool_calls") or []]

    def require_read(self, written: str, call: ToolCall) -> None:
        """Check that this call is found where the chat template wrote it. Raises InputError if it is not."""
        if (found := self.calls(written)) != [call]:
            raise InputError(
                _FIELD,
                f"{self.name}, but the model's chat template writes a call as {written.strip()!r}",
                "the format of the model's tool calls",
                f"Choose another toolFormat: {found[0].fault if found else 'no call was found in that'}.",
            )

    def _call(self, raw: Any, parse: Any) -> ToolCall:
        try:
            # The form of the Chat Completions API has name and arguments in `function`.
            call = (parsed := parse(raw, self._items)).get("function", parsed)
            name, arguments = call["name"].strip(), call.get("arguments", call.get("parameters"))
            if name not in self._parameters:
                return ToolCall(fault=f"there is no tool {name!r}; the tools are {', '.join(self._parameters)}")
            own = self._parameters[name]
            kinds = {key: _kinds(schema, own.get("$defs", {})) for key, schema in own["properties"].items()}
            typed = {key: _typed(value, kinds.get(key, _TEXT)) for key, value in (arguments or {}).items()}
            # It goes to another process, and its texts may come back into a prompt.
            pickle.dumps(typed)
            json.dumps(typed, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            return ToolCall(fault=f"the tool call is malformed: {_reason(error)}")
        return ToolCall(name, typed)


def example_of(tool: Mapping[str, Any]) -> ToolCall:
    """Return a call of a tool, with made-up values for the arguments that it needs."""
    parameters = tool["function"]["parameters"]
    needed = {key: parameters["properties"][key] for key in parameters.get("required", ())}
    return ToolCall(tool["function"]["name"], {key: _made_up(schema) for key, schema in needed.items()})


def _made_up(schema: Mapping[str, Any]) -> Any:
    values = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None}
    return schema["enum"][0] if schema.get("enum") else values.get(_kinds(schema, {})[0], "text")


def _kinds(schema: Any, named: Any) -> Sequence[str]:
    """Return the types of JSON that a parameter's schema allows, at least one; a text if it does not say.

    `named`: what the schema may refer to, as Pydantic writes models. An agent's schemas may have anything.
    """
    if not isinstance(schema, dict) or not isinstance(named, dict):
        return _TEXT
    if isinstance(reference := schema.get("$ref"), str):
        name = reference.rpartition("/")[2]
        others = {other: one for other, one in named.items() if other != name}
        return _kinds(named.get(name, {}), others)
    if isinstance(kind := schema.get("type"), str | list):
        return [kind] if isinstance(kind, str) else kind
    lists = [some for key in ("anyOf", "oneOf", "allOf") if isinstance(some := schema.get(key), list)]
    parts = [part for some in lists for part in some]
    if kinds := [kind for part in parts for kind in _kinds(part, named)]:
        return kinds
    values = (
        schema["enum"] if isinstance(schema.get("enum"), list) else [schema[key] for key in schema if key == "const"]
    )
    return [_OF_VALUES.get(type(value), "object") for value in values] or _TEXT


def _own_schema(tokenizer: Any) -> dict[str, Any] | None:
    own = getattr(tokenizer, "response_schema", None)
    return own if isinstance(own, dict) and "items" in own.get("properties", {}).get("tool_calls", {}) else None


def _found(tokenizer: Any) -> ToolFormat:
    for mark, family in _MARKS.items():
        if mark in str(tokenizer.chat_template):
            return family
    raise InputError(
        _FIELD,
        "a model whose chat template does not show how it writes tool calls",
        f"one of {', '.join(get_args(ToolFormat))}",
        "Set the one that the model was trained with, or use a model with tools, such as Qwen's, GLM's or Llama 3's.",
    )


def _reason(error: Exception) -> str:
    """Return in a few words why a call cannot be parsed."""
    causes: Iterator[BaseException | None] = iter((error.__cause__, error.__context__))
    if isinstance(at := next(filter(None, causes), None), json.JSONDecodeError):
        return f"it is no JSON ({at})"
    if "JSON compliant" in str(error):
        return "it has a number that is not finite, which no JSON has"
    if missing := re.match(r"Required fields (\[.*?\]) are missing", str(error)):
        return f"it lacks {missing[1]}"
    return "it has not the form in which tools are called"


def _typed(value: Any, kinds: Sequence[str]) -> Any:
    """Return an argument of formats that know only texts, of the types that the tool's schema has for it."""
    if not isinstance(value, str) or "string" in kinds:
        return value
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
    return value
