"""The cells of a row: prompts and answers as people write them, and what is wrong with the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.errors import InputError

_FROM_SHAREGPT = (
    """jq -c '.COLUMN |= map({role: ({human: "user", gpt: "assistant"}[.from] // .from), content: .value})'."""
)
Message = Mapping[str, Any]
"""One turn of a chat: `role` and `content`, both texts. Other keys are passed to the chat template unchanged."""
Prompt = str | list[Message]
ROLES = frozenset(
    {"system", "developer", "user", "assistant", "tool", "function", "ipython", "observation", "documents"}
)
"""The roles that chat templates of the supported families know."""
_MEANT = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "ai": "assistant"}


def missing(raw: dict[str, Any], name: str, field: str, where: str, source: DataSource) -> InputError:
    """Return the error of a row without a column, or with nothing in it."""
    existing = ", ".join(key if key == key.strip() else repr(key) for key in sorted(raw)) or "none"
    if name in raw:
        return InputError(
            field, f"{name}, which is empty in {where}", "a value in every row", "Fill it in, or remove that row."
        )
    near = get_close_matches(name, raw, n=1, cutoff=0.5)
    hint = f"Set {field} to one of them, or add the column."
    if _lacks_header(raw, source):
        hint += " A CSV file needs a line with the names of its columns."
    elif near:
        hint = f"Did you mean {near[0] if near[0] == near[0].strip() else repr(near[0])}?"
    return InputError(field, f"{name}, which {where} does not have", f"one of the existing fields ({existing})", hint)


def _lacks_header(raw: dict[str, Any], source: DataSource) -> bool:
    """Whether the names of a CSV file's columns seem to be its first row: none is one that the manifest names."""
    columns = (source.prompt_field, source.answer_field, *source.pair_fields)
    return source.origin.lower().endswith(".csv") and {key.strip() for key in raw}.isdisjoint(columns)


def prompt_of(value: Any, field: str, where: str) -> Prompt:
    """Return a prompt unless it is something else, or empty."""
    if isinstance(value, str) and value.strip():
        return unicode(value, field, where)
    if isinstance(value, list) and value and all(is_message(message) for message in value):
        for message in value:
            unicode(message["content"], field, where)
        return value
    empty = value == [] or (isinstance(value, str) and not value.strip())
    got = f"an empty {type(value).__name__}" if empty else f"{brief(value)} ({type(value).__name__})"
    raise InputError(
        field,
        f"{got} in {where}",
        "a text, or a list of chat messages with role and content, both texts",
        "Write prompts as texts." if isinstance(value, int | float) else messages_hint(value),
    )


def messages_hint(value: Any) -> str:
    """Return what to do about a value that should be a list of chat messages. Other tools' forms are in every row."""
    if isinstance(value, bytes):
        return "Store the column as text, not as bytes, in every row."
    first = next((one for one in value if not is_message(one)), None) if isinstance(value, list) and value else None
    if isinstance(value, dict) and is_message(value):
        return "Put the message into a list, in every row."
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        return "Store the messages as a list, not as JSON in a text, in every row."
    if not isinstance(first, dict):
        return "Fix that row, or remove it."
    if isinstance(first.get("from"), str) and "value" in first:
        return f"These are messages as ShareGPT has them. Convert every row, for example with {_FROM_SHAREGPT}"
    content = first.get("content")
    if isinstance(content, list):
        return "Join the texts of each content into one text, in every row. Images cannot be trained on."
    if "content" in first and content is None and first.get("tool_calls"):
        return "Write each call of a tool as the text that the model should produce, or remove those messages."
    if "content" in first and content is None:
        return "Give every message a content, or remove the messages without one, in every row."
    if "text" in first and "role" in first:
        return "Rename text to content, in every row."
    return "Fix that row, or remove it."


def meant_role(role: str) -> str:
    """Return the role that another tool's name of one stands for, in words."""
    plain = role.lower()
    return _MEANT.get(plain) or (plain if plain in ROLES else "user or assistant")


def renaming(messages: Iterable[Message]) -> str:
    """Return what to do about roles that chat templates do not know, as a sentence; empty if there are none."""
    odd = [role for role in dict.fromkeys(str(message["role"]) for message in messages) if role not in ROLES]
    return f"Rename roles in every row: {', '.join(f'{role!r} to {meant_role(role)}' for role in odd)}." if odd else ""


def is_message(value: Any) -> bool:
    """Whether it is a chat message."""
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def is_answer(value: Any) -> bool:
    """Whether it is a text or a number, as `answer_text` takes it."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | int) and not isinstance(value, bool)


def answer_text(value: Any, field: str, where: str) -> str | None:
    """Return an answer as text.

    Numbers (`{"answer": 42}`) become the text that people write: 72.0 is 72, 1e-05 is 0.00001.
    """
    if value is None:
        return None
    if not is_answer(value):
        raise InputError(
            field,
            f"{brief(value)} ({type(value).__name__}) in {where}",
            "a text or a number",
            "Write the answer as a text.",
        )
    if isinstance(value, str):
        return unicode(value, field, where)
    if isinstance(value, float):
        # A column of whole numbers with missing values is stored as floats.
        return f"{Decimal(repr(value)).normalize():f}" if value == 0 or 1e-30 < abs(value) < 1e16 else repr(value)
    return str(value)


def unicode(text: str, field: str, where: str) -> str:
    """Return the text unless it has an unpaired surrogate, which JSON can contain and no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        surrogate = ascii(text[error.start])[1:-1]
        raise InputError(
            field, f"an unpaired surrogate ({surrogate}) in {where}", "valid Unicode", "Fix that row, or remove it."
        ) from None
    return text


def brief(value: Any) -> str:
    """Return a value for a message, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
