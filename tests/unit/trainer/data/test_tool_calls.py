"""Tool calls are found in a turn as its family writes them, and a malformed one is named, whatever it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorarl_api.v1alpha1 import ToolFormat
from lorarl_trainer.data.tool_calls import SCHEMAS, CallParser, ToolCall, example_of
from lorarl_trainer.errors import InputError

PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "fine": {"type": "boolean"},
    "places": {"type": "array", "items": {"type": "string"}},
    "scale": {"type": ["number", "string"]},
}
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}}
UNIONS: dict[str, Any] = {
    "some": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "one": {"oneOf": [{"type": "array", "items": {}}, {"type": "number"}]},
    "same": {"allOf": [{"$ref": "#/$defs/Point"}]},
    "point": {"$ref": "#/$defs/Point"},
    "itself": {"$ref": "#/$defs/Itself"},
    "level": {"enum": [1, 2]},
    "fixed": {"const": 7},
    "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    "word": {"enum": ["1", "2"]},
    "any": {},
    "odd": {"anyOf": [True, 3, {"anyOf": 3, "enum": 3, "type": 3}]},
}
"""As Pydantic, and clients that take models, write them."""
PROPERTIES |= UNIONS
DEFINITIONS = {"Point": POINT, "Itself": {"$ref": "#/$defs/Itself"}}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["city", "days"], "$defs": DEFINITIONS}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": PARAMETERS}}]
CALLED = ToolCall("weather", {"city": "Bern", "days": 3})
WRITTEN: dict[ToolFormat, str] = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "days": 3}}\n</tool_call>',
    "qwen3_xml": "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n3\n"
    "</parameter>\n</function>\n</tool_call>",
    "glm45": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n<arg_key>days</arg_key>\n"
    "<arg_value>3</arg_value>\n</tool_call>",
    "llama3_json": '{"name": "weather", "parameters": {"city": "Bern", "days": 3}}',
}
TEMPLATES: dict[ToolFormat, str] = {
    "hermes": "{{ '<tool_call>' }}",
    "qwen3_xml": "<tool_call>\n<function=example>",
    "glm45": "<tool_call>{function-name}\n<arg_key>",
    "llama3_json": "{{ '<|python_tag|>' }}",
}
GEMMA = {
    "type": "object",
    "properties": {
        "tool_calls": {
            "type": "array",
            "x-regex-iterator": r"<\|tool_call>(.*?)<tool_call\|>",
            "items": {
                "type": "object",
                "properties": {
                    "type": {"const": "function"},
                    "function": {
                        "type": "object",
                        "x-regex": r"call\:(?P<name>\w+)(?P<arguments>\{.*\})",
                        "properties": {
                            "name": {"type": "string"},
                            "arguments": {"type": "object", "x-parser": "gemma4-tool-call"},
                        },
                    },
                },
            },
        }
    },
}
"""A schema that a tokenizer brings."""


def tokenizer(template: str = "", schema: Any = None) -> Any:
    return SimpleNamespace(chat_template=template, response_schema=schema)


def calls(family: ToolFormat, turn: str) -> list[ToolCall]:
    return CallParser(tokenizer(), TOOLS, family).calls(turn)


def test_each_format_of_the_contract_has_its_schema() -> None:
    assert set(SCHEMAS) == set(WRITTEN) == set(get_args(ToolFormat))


@pytest.mark.parametrize("family", WRITTEN)
def test_a_call_is_found_as_its_family_writes_it(family: ToolFormat) -> None:
    assert calls(family, WRITTEN[family]) == [CALLED]
    assert calls(family, "It is fine in Bern.") == []
    parser = CallParser(tokenizer(TEMPLATES[family]), TOOLS)
    assert parser.name == family and parser.calls(WRITTEN[family]) == [CALLED]


def test_the_schema_of_a_tokenizer_comes_first() -> None:
    parser = CallParser(tokenizer("<tool_call>", GEMMA), TOOLS)
    assert parser.calls('x<|tool_call>call:weather{city:<|"|>Bern<|"|>,days:3}<tool_call|>') == [CALLED]
    (malformed,) = parser.calls("<|tool_call>call:weather{city:<tool_call|>")
    assert malformed.fault.startswith("the tool call is malformed")


def test_a_model_that_shows_no_format_is_refused_until_one_is_named() -> None:
    with pytest.raises(InputError, match=r"spec\.environment\.toolFormat: .* one of hermes, qwen3_xml, glm45, llama3"):
        CallParser(tokenizer("{{ messages }}"), TOOLS)
    CallParser(tokenizer("{{ messages }}"), TOOLS, "hermes")


@pytest.mark.parametrize("family", ["hermes", "qwen3_xml", "glm45"])
def test_one_turn_may_call_often_and_a_thought_calls_nothing(family: ToolFormat) -> None:
    one = WRITTEN[family]
    assert calls(family, f"<think>{one}</think>\n\nI look it up.\n{one}\n{one}") == [CALLED, CALLED]
    assert calls(family, f"<think>{one}</think>It is fine.") == []


@pytest.mark.parametrize(
    ("family", "turn", "fault"),
    [
        ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "B', "malformed: it is no JSON (Untermin"),
        ("hermes", "<tool_call></tool_call>", "malformed: it is no JSON (Expecting value"),
        ("hermes", '<tool_call>{"name": "weather"}</tool_call>', "malformed: it lacks ['arguments']"),
        ("hermes", '<tool_call>{"name": "sun", "arguments": {}}</tool_call>', "no tool 'sun'; the tools are weather"),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>', "malformed: it has not the form"),
        ("hermes", "<tool_call>[1]</tool_call>", "malformed: it has not the form"),
        ("hermes", '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>', "malformed: it has not the form"),
        ("hermes", f"<tool_call>{'[' * 100_000}</tool_call>", "malformed: it"),
        (
            "hermes",
            f'<tool_call>{{"name": "weather", "arguments": {{"city": {"[" * 900 + "]" * 900}}}}}',
            "malformed: it",
        ),
        ("hermes", r'<tool_call>{"name": "weather", "arguments": {"city": "\ud800"}}', "malformed: it"),
        (
            "hermes",
            '<tool_call>{"name": "weather", "arguments": {"days": NaN}}',
            "malformed: it has a number that is not",
        ),
        ("glm45", "<tool_call>weather<arg_key>days</arg_key><arg_value>NaN</arg_value>", "malformed: it has a number"),
        ("qwen3_xml", "<tool_call>weather</tool_call>", "malformed: it lacks ['name']"),
        ("glm45", "<tool_call>\n</tool_call>", "malformed: it lacks ['name']"),
        ("qwen3_xml", "<tool_call><function=weather>\n<parameter=city>\nBe", "malformed: it has not the form"),
        ("glm45", "<tool_call>weather<arg_key>city</arg_key><arg_value>Be", "malformed: it has not the form"),
        ("llama3_json", '{"name": "weather", "parameters": {"city"', "malformed: it is no JSON"),
    ],
)
def test_a_malformed_call_says_why(family: ToolFormat, turn: str, fault: str) -> None:
    (call,) = calls(family, turn)
    assert fault in call.fault and call.arguments is None


def test_a_malformed_call_costs_no_other() -> None:
    found = calls("hermes", f"<tool_call>x</tool_call>{WRITTEN['hermes']}")
    assert [bool(call.fault) for call in found] == [True, False]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("city", "3", "3"),
        ("days", "three", "three"),
        ("fine", "True", True),
        ("places", '["a"]', ["a"]),
        ("scale", "1", "1"),
        ("other", "1", "1"),
        ("some", "3", 3),
        ("some", "null", None),
        ("one", "[1]", [1]),
        ("same", '{"x": 1}', {"x": 1}),
        ("point", '{"x": 1}', {"x": 1}),
        ("itself", "1", "1"),
        ("level", "2", 2),
        ("fixed", "7", 7),
        ("either", "1", "1"),
        ("word", "1", "1"),
        ("any", "1", "1"),
        ("odd", "1", "1"),
    ],
)
def test_formats_of_texts_give_what_the_signature_wants(key: str, text: str, value: Any) -> None:
    (call,) = calls("glm45", f"<tool_call>weather<arg_key>{key}</arg_key><arg_value>{text}</arg_value></tool_call>")
    assert call.arguments == {key: value}


def test_an_example_has_what_a_tool_needs() -> None:
    assert example_of(TOOLS[0]) == ToolCall("weather", {"city": "text", "days": 1})


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(list(WRITTEN)),
    st.lists(
        st.sampled_from(
            [
                "<tool_call>",
                "</tool_call>",
                "{",
                "}",
                '"name"',
                "é",
                ":",
                '"weather"',
                '"arguments"',
                "<function=weather>",
                "<arg_key>",
                "</think>",
                "<|python_tag|>",
                "\n",
                "1",
            ]
        )
    ),
)
def test_any_text_is_parsed(family: ToolFormat, pieces: list[str]) -> None:
    for call in calls(family, "".join(pieces)):
        assert call.fault or call.name == "weather"
