"""Reads what a row of supervised fine-tuning teaches besides an answer: a whole conversation, or tokens with a mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data.called import require_calls
from lorarl_trainer.data.cells import ASSISTANT, Message, brief, is_message, messages_hint, renaming, unicode
from lorarl_trainer.data.columns import cell, missing
from lorarl_trainer.data.context import with_system
from lorarl_trainer.errors import InputError


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat of which the assistant's turns are learned.

    Attributes:
        trained: whether each of the assistant's messages is, in their order; at least one.
    """

    messages: list[Message]
    trained: list[bool]


@dataclass(frozen=True, slots=True)
class Tokens:
    """A sequence that is tokenized already.

    Attributes:
        ids: token ids, at least two.
        trained: whether each is. The first is not: nothing comes before it. At least one other is.
    """

    ids: list[int]
    trained: list[bool]


type Lesson = Conversation | Tokens


def lesson_of(raw: dict[str, Any], source: DataSource, field: str, where: str) -> Lesson | None:
    """Return what a row teaches; None if it has a prompt and an answer.

    Raises:
        InputError: a column is missing, or has something else.
    """
    if source.messages_field is not None:
        value = _cell(raw, source.messages_field, f"{field}.messagesField", where, source)
        lesson = _conversation(value, field, where, source.messages_field)
        messages = with_system(lesson.messages, raw, source, field, where)
        assert isinstance(messages, list), "of messages"
        return Conversation(messages, lesson.trained)
    if source.tokens_field is not None and source.loss_mask_field is not None:
        ids = _cell(raw, source.tokens_field, f"{field}.tokensField", where, source)
        mask = _cell(raw, source.loss_mask_field, f"{field}.lossMaskField", where, source)
        return _tokens(ids, mask, field, where)
    return None


def _cell(raw: dict[str, Any], name: str, field: str, where: str, source: DataSource) -> Any:
    if (value := cell(raw, name)) is None:
        raise missing(raw, name, field, where, source)
    return value


def _conversation(value: Any, field: str, where: str, column: str) -> Conversation:
    field = f"{field}.messagesField"
    require_calls(value, field, where)
    if not (isinstance(value, list) and value and all(is_message(message) for message in value)):
        raise InputError(
            field,
            f"{brief(value)} in {where}",
            "a list of chat messages with role and content, both texts",
            messages_hint(value, column),
        )
    for message in value:
        unicode(message["content"], field, where)
    if value[0]["role"] == ASSISTANT:
        raise InputError(
            field,
            f"a conversation that begins with the assistant in {where}",
            "a message before the assistant's first",
            "Add the message that it answers, or remove that row.",
        )
    trained = [_is_trained(message, field, where) for message in value if message["role"] == ASSISTANT]
    if not trained and (hint := renaming(value)):
        roles = ", ".join(repr(role) for role in dict.fromkeys(message["role"] for message in value))
        expected = "the roles that chat templates know, of which assistant is learned"
        raise InputError(field, f"messages with the roles {roles} in {where}", expected, hint)
    if not any(trained):
        raise InputError(
            field,
            f"a conversation with no turn to learn in {where}",
            "a message of the assistant without weight: 0 and train: false",
            "Fix that row, or remove it.",
        )
    plain: list[Message] = [
        {key: inner for key, inner in message.items() if key not in ("weight", "train")} for message in value
    ]
    return Conversation(plain, trained)


def _is_trained(message: Message, field: str, where: str) -> bool:
    """Return whether a turn is trained: not with `weight: 0`, as OpenAI has it, or `train: false`, as others do."""
    for key in ("weight", "train"):
        # Tables make 0 and 1, or 0.0 and 1.0, of truth values: equal to them, but not the same objects.
        if (value := message.get(key)) not in (None, 0, 1):
            raise InputError(
                field,
                f"a message with {key}: {brief(value)} in {where}",
                "weight: 0 or 1, or train: true or false",
                f"Set {key} to 0 to leave the message out, to 1 to learn it, or remove {key}.",
            )
    return 0 not in (message.get("weight"), message.get("train"))


def _tokens(ids: Any, mask: Any, field: str, where: str) -> Tokens:
    if not (isinstance(ids, list) and len(ids) > 1 and all(type(token) is int and token >= 0 for token in ids)):
        raise InputError(
            f"{field}.tokensField",
            f"{brief(ids)} in {where}",
            "a list of two or more token ids",
            "Fix that row, or remove it.",
        )
    if not (isinstance(mask, list) and len(mask) == len(ids) and all(one in (0, 1) for one in mask)):
        other_length = isinstance(mask, list) and len(mask) != len(ids)
        length = f"a list of {len(mask)} for {len(ids)} tokens" if other_length else brief(mask)
        raise InputError(
            f"{field}.lossMaskField",
            f"{length} in {where}",
            "a list with 0 or 1 for each token",
            "Fix that row, or remove it.",
        )
    trained = [False, *(bool(one) for one in mask[1:])]
    if not any(trained):
        raise InputError(
            f"{field}.lossMaskField",
            f"no token to learn in {where}",
            "at least one 1 after the first token",
            "Fix that row, or remove it.",
        )
    return Tokens(ids, trained)
