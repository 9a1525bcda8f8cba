"""What the columns of a system message and of tools add to a prompt or a conversation."""

from __future__ import annotations

import json
from typing import Any

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data.cells import Prompt, as_messages, brief, unicode
from lorarl_trainer.data.columns import cell
from lorarl_trainer.errors import InputError


def with_system(prompt: Prompt, raw: dict[str, Any], source: DataSource, field: str, where: str) -> Prompt:
    """Return a prompt after the row's system message, if it has one.

    Raises:
        InputError: that is no text, or the messages have another one.
    """
    if source.system_field is None or (text := cell(raw, source.system_field)) in (None, ""):
        return prompt
    of = f"{field}.systemField"
    if not isinstance(text, str):
        raise InputError(of, f"{brief(text)} ({type(text).__name__}) in {where}", "a text", "Write it as a text.")
    messages = as_messages(prompt)
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": unicode(text, of, where)}, *messages]
    if messages[0]["content"] != text:
        got = f"{brief(text)} beside another system message, {brief(messages[0]['content'])}, in {where}"
        raise InputError(of, got, "one system message", f"Remove {of}, or the system messages of the rows.")
    return prompt


def tools_of(raw: dict[str, Any], source: DataSource, field: str, where: str) -> list[dict[str, Any]] | None:
    """Return the row's tools; None if it has none.

    Raises:
        InputError: they are no list of JSON schemas.
    """
    if source.tools_field is None:
        return None
    value = given = cell(raw, source.tools_field)
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError:
            value = None
        if value is None and given.strip() != "null":
            value = given
    if not value:
        return None
    if isinstance(value, list) and all(isinstance(tool, dict) for tool in value):
        return value
    raise InputError(
        f"{field}.toolsField",
        f"{brief(given)} in {where}",
        "a list of JSON schemas, or JSON text of one",
        "Write the tools of each row as the model's chat template takes them.",
    )
