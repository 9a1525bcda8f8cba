"""The cells of a row: prompts and answers as people write them, and what is wrong with the others."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from lorarl_trainer.errors import InputError

_FROM_SHAREGPT = """map({role: ({human: "user", gpt: "assistant"}[.from] // .from), content: .value})"""
Message = Mapping[str, Any]
"""One turn of a chat: `role` and `content`, both texts. Other keys are passed to the chat template unchanged."""
Prompt = str | list[Message]
ROLES = frozenset(
    {"system", "developer", "user", "assistant", "tool", "function", "ipython", "observation", "documents"}
)
"""The roles that chat templates of the supported families know."""
THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thought")
"""Keys of a message with what the assistant thought before it. Templates read at most one of them."""
ASSISTANT = "assistant"
_IN_ANY_TEMPLATE = ("user", ASSISTANT, "tool")
_MEANT = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "ai": "assistant"}


def prompt_of(value: Any, field: str, where: str, column: str = "") -> Prompt:
    """Return a prompt unless it is something else, or empty. `column` is its name, for errors."""
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
        "Write prompts as texts."
        if isinstance(value, int | float)
        else (not is_message(value) and within_hint(value, field, column)) or messages_hint(value, column),
    )


def as_messages(prompt: Prompt) -> list[Message]:
    """Return a prompt as chat messages: a text is one of the user's."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def messages_hint(value: Any, column: str) -> str:
    """Return what to do about a value that should be a list of chat messages. Other tools' forms are in every row.

    `column` is its name; empty if it is not known.
    """
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
        place = "".join(f'["{part}"]' for part in (column or "COLUMN").split("."))
        return (
            "These are messages as ShareGPT has them. Convert every row, for example with "
            f"jq -c '.{place} |= {_FROM_SHAREGPT}'."
        )
    content = first.get("content")
    if isinstance(content, list):
        return "Join the texts of each content into one text, in every row. Images cannot be trained on."
    if content is None and first.get("tool_calls"):
        return "Give messages with tool_calls the role assistant, in every row."
    if "text" in first and "role" in first:
        return "Rename text to content, in every row."
    if "role" in first and content is None:
        return "Give every message a content, or remove the messages without one, in every row."
    return "Fix that row, or remove it."


def meant_role(role: str) -> str:
    """Return the role that another tool's name of one stands for, in words."""
    plain = role.lower()
    return _MEANT.get(plain) or (plain if plain in ROLES else "user or assistant")


def renaming(messages: Iterable[Message]) -> str:
    """Return what to do about roles that chat templates do not know, as a sentence; empty if there are none."""
    odd = [role for role in dict.fromkeys(str(message["role"]) for message in messages) if role not in ROLES]
    return f"Rename roles in every row: {', '.join(f'{role!r} to {meant_role(role)}' for role in odd)}." if odd else ""


def left_out(messages: Iterable[Message], written: str) -> Message | None:
    """Return the first message that a template has left out of what it wrote; None if it has all of them.

    Templates know user, assistant and tool, and some change the text of a turn. Other roles they leave out in silence:
    Qwen's writes nothing for developer.
    """
    end = 0
    for message in messages:
        text = message.get("content")
        if message["role"] not in _IN_ANY_TEMPLATE and isinstance(text, str):
            text = text.strip()
            forms = {text, *(json.dumps(text, ensure_ascii=ascii)[1:-1] for ascii in (True, False))}
            places = [(place, form) for form in forms if (place := written.find(form, end)) >= 0]
            if not places:
                return message
            end = min(place + len(form) for place, form in places)  # another message may say the same
    return None


def is_message(value: Any) -> bool:
    """Whether it is a chat message."""
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def is_answer(value: Any) -> bool:
    """Whether it is a text or a number, as `answer_text` takes it."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | int | Decimal) and not isinstance(value, bool)


def answer_text(value: Any, field: str, where: str, column: str = "") -> str | None:
    """Return an answer as text.

    Numbers (`{"answer": 42}`) become the text that people write: 72.0 is 72, 1e-05 is 0.00001. A message of the
    assistant, alone in a list, is its content. `column` is its name, for errors.
    """
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 1 and is_message(value[0]) and value[0]["role"] == ASSISTANT:
        value = content_alone(value[0], field, where)
    if not is_answer(value):
        raise InputError(
            field,
            f"{brief(value)} ({type(value).__name__}) in {where}",
            "a text or a number",
            _answer_hint(value, field, column),
        )
    if isinstance(value, str):
        return unicode(value, field, where)
    if isinstance(value, float):
        # A column of whole numbers with missing values is stored as floats.
        return f"{Decimal(repr(value)).normalize():f}" if value == 0 or 1e-30 < abs(value) < 1e16 else repr(value)
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def content_alone(message: Message, field: str, where: str) -> str:
    """Return the content of an answer's message, which has nothing else that the model would have to learn.

    Raises:
        InputError: it has.
    """
    if other := [key for key in message if key not in ("role", "content", "name", "weight", "train")]:
        raise InputError(
            field,
            f"a message with {other[0]} in {where}",
            "role and content alone",
            f"Write {other[0]} into content, as the chat template writes it, or remove it in every row.",
        )
    content: str = message["content"]
    return content


def _answer_hint(value: Any, field: str, column: str) -> str:
    if isinstance(value, list) and value and all(is_message(one) for one in value):
        return (
            "Join prompt and answer into one column of messages in every row, and name it in messagesField (for sft)."
        )
    return within_hint(value, field, column) or "Write the answer as a text."


def within_hint(value: Any, field: str, column: str) -> str:
    """Return which key of an object to name, if one has a text or a number; empty if none has."""
    keys = [key for key, one in value.items() if is_answer(one)] if isinstance(value, dict) else []
    return f"Set {field} to {' or '.join(f'{column}.{key}' for key in keys)}." if keys else ""


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
