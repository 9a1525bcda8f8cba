"""What finds tool calls takes as long as the turn is: a model may write a mark ten thousand times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from lorarl_trainer.data.tool_calls import SCHEMAS
from support.regex_work import Work

MARKS = [
    *("<tool_call>", "</tool_call>", "<function=", "<function=weather>", "<parameter=", "<parameter=city>"),
    *("</parameter>", "<parameter=city>\n", "<arg_key>", "<arg_key>city</arg_key>", "<arg_value>", "</arg_value>"),
    *("<arg_key>city</arg_key>\n\n\n", "<arg_key>city</arg_key><arg_value>", "</think>", '{"name"', "\n ", "x"),
    "<arg_key>city</arg_key><arg_key>",
]


def patterns(schema: Any) -> Iterator[str]:
    for key, value in schema.items() if isinstance(schema, dict) else ():
        if key in ("x-regex", "x-regex-iterator", "x-regex-key-value"):
            yield value
        yield from patterns(value)


PATTERNS = sorted({pattern for schema in SCHEMAS.values() for pattern in patterns(schema)})


def looks(pattern: str, text: str) -> int:
    work = Work(pattern)
    assert list(work.finditer(text)) == [found[0] for found in re.finditer(pattern, text, re.DOTALL)]
    return work.looks


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_twice_the_turn_is_twice_the_work(pattern: str, mark: str) -> None:
    """At four times the length, quadratic work is 16 times as much."""
    short, long = (looks(pattern, "<tool_call>weather " + mark * times) for times in (40, 160))
    assert long <= 5 * short


def test_what_was_quadratic_is_found_by_counting() -> None:
    before = r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"
    short, long = (looks(before, "<parameter=city>" * times) for times in (40, 160))
    assert long > 12 * short
