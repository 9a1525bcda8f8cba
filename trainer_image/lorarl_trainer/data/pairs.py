"""Reads preference pairs: a prompt, a chosen and a rejected answer, as texts or as chat messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data.called import require_calls
from lorarl_trainer.data.cells import (
    ASSISTANT,
    Message,
    Prompt,
    answer_text,
    as_messages,
    brief,
    content_alone,
    is_message,
    messages_hint,
    prompt_of,
)
from lorarl_trainer.data.columns import cell, missing
from lorarl_trainer.errors import InputError


def pair_of(raw: dict[str, Any], source: DataSource, field: str, where: str) -> tuple[Prompt, str, str]:
    """Return the prompt and the texts of the chosen and the rejected answer of a row.

    An answer in messages is one message of the assistant, alone or after the prompt's messages. The prompt is all that
    comes before the last messages of both, if that is more than a prompt's column has.

    Raises:
        InputError: a column is missing, or has something else.
    """
    columns = tuple(zip(source.pair_fields, (f"{field}.chosenField", f"{field}.rejectedField"), strict=True))
    for name, of in columns:
        if cell(raw, name) is None:
            raise missing(raw, name, of, where, source)
    chosen, rejected = (cell(raw, name) for name, _ in columns)
    for value, (_, of) in zip((chosen, rejected), columns, strict=True):
        require_calls(value, of, where)
    before = chosen[:-1] if _is_chat(chosen) and _is_chat(rejected) and _same(chosen[:-1], rejected[:-1]) else []
    if (given := cell(raw, source.prompt_field)) is not None:
        require_calls(given, f"{field}.promptField", where)
        prompt = prompt_of(given, f"{field}.promptField", where, source.prompt_field)
        own = as_messages(prompt)
        if len(before) > len(own) and _same(before[-len(own) :], own):
            prompt = before  # a system message or earlier turns, of which the column has the last one
    elif before:
        prompt = prompt_of(before, f"{field}.chosenField", where)
    elif _is_chat(chosen) and _is_chat(rejected) and chosen[:-1]:
        raise InputError(
            f"{field}.rejectedField",
            f"a conversation that begins otherwise than that of {source.pair_fields[0]} in {where}",
            "two conversations that differ in their last message alone, or a column with the prompt",
            "Cut both after the first answer that differs, or remove that row.",
        )
    elif isinstance(chosen, str) and isinstance(rejected, str) and chosen.split()[:1] == rejected.split()[:1] != []:
        got, expected = f"{source.prompt_field}, which {where} does not have", "a column with what both answers follow"
        hint = f"Move what both texts begin with into a column {source.prompt_field}, in every row."
        raise InputError(f"{field}.promptField", got, expected, hint)
    else:
        raise missing(raw, source.prompt_field, f"{field}.promptField", where, source)
    first, second = (_completion(cell(raw, name), prompt, of, where, name) for name, of in columns)
    return prompt, first, second


def _completion(value: Any, prompt: Prompt, field: str, where: str, column: str) -> str:
    if _is_chat(value):
        before = as_messages(prompt)
        answer = value[len(before) :] if _same(value[: len(before)], before) else value
        if len(answer) == 1 and answer[0]["role"] == ASSISTANT:
            value = content_alone(answer[0], field, where)
    if isinstance(value, list | dict):
        raise InputError(
            field,
            f"{brief(value)} in {where}",
            "a text, or one message of the assistant, alone or after the prompt's messages",
            "Let both answers continue the prompt, or remove that row."
            if _is_chat(value)
            else _answer_hint(value, field, column),
        )
    text = answer_text(value, field, where)
    assert text is not None, "missing values are refused"
    return text


def _answer_hint(value: Any, field: str, column: str) -> str:
    if isinstance(value, dict) and "from" in value and isinstance(value.get("value"), str):
        return f"Set {field} to {column}.value."
    return messages_hint(value if isinstance(value, list) or is_message(value) else [value], column)


def _is_chat(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(is_message(message) for message in value)


def _same(one: Sequence[Message], other: Sequence[Message]) -> bool:
    """Return whether messages say the same: their other keys do not count."""
    return [(message["role"], message["content"]) for message in one] == [
        (message["role"], message["content"]) for message in other
    ]
