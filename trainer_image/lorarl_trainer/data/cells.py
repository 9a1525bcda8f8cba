"""The cells of a row: prompts and answers as people write them, and what is wrong with the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from lorarl_trainer.errors import InputError

Message = Mapping[str, Any]
"""One turn of a chat: `role` and `content`, both texts. Other keys are passed to the chat template unchanged."""
Prompt = str | list[Message]


def missing(raw: dict[str, Any], name: str, field: str, where: str) -> InputError:
    """Return the error of a row without a column, or with nothing in it."""
    existing = ", ".join(key if key == key.strip() else repr(key) for key in sorted(raw)) or "none"
    if name in raw:
        return InputError(
            field, f"{name}, which is empty in {where}", "a value in every row", "Fill it in, or remove that row."
        )
    near = get_close_matches(name, raw, n=1, cutoff=0.5)
    hint = f"Set {field} to one of them, or add the column. A CSV file needs a line with the names of its columns."
    if near:
        hint = f"Did you mean {near[0] if near[0] == near[0].strip() else repr(near[0])}?"
    return InputError(field, f"{name}, which {where} does not have", f"one of the existing fields ({existing})", hint)


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
        "Write prompts as texts." if isinstance(value, int | float) else "Fix that row, or remove it.",
    )


def is_message(value: Any) -> bool:
    """Whether it is a chat message."""
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def answer_text(value: Any, field: str, where: str) -> str | None:
    """Return an answer as text.

    Numbers (`{"answer": 42}`) become the text that people write: 72.0 is 72, 1e-05 is 0.00001.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return unicode(value, field, where)
    if isinstance(value, float) and math.isfinite(value):
        # A column of whole numbers with missing values is stored as floats.
        return f"{Decimal(repr(value)).normalize():f}" if value == 0 or 1e-30 < abs(value) < 1e16 else repr(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InputError(
        field,
        f"{brief(value)} ({type(value).__name__}) in {where}",
        "a text or a number",
        "Write the answer as a text.",
    )


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
