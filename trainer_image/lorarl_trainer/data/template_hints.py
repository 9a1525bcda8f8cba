"""What to do about a chat template that does not fit the rows. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lorarl_trainer.data.cells import Message, renaming
from lorarl_trainer.data.lessons import Conversation
from lorarl_trainer.data.rows import Row
from lorarl_trainer.errors import InputError


def other_template(does: str) -> str:
    """Return how to name a template that does something, as the end of a sentence."""
    return f"name a template that {does} (spec.data.chatTemplateFile: file:PATH)"


def written_by_hand(what: str, removed: str) -> str:
    """Return what to do about calls or tools that a template does not write. `removed`: where the rows have them."""
    return (
        f"Write {what} as the model should see them, and remove {removed}, or {other_template('writes them')}. "
        "The formats of families are in docs/environments.md#tools."
    )


def unfit_template(row: Row, what: str) -> InputError:
    """Return the error of a template with which a turn would not be learned as it is given. `what` has {} for a row."""
    hint = "set spec.data.chatTemplate to false and format the prompts yourself"
    if isinstance(row.lesson, Conversation):
        hint = "put {% generation %} and {% endgeneration %} around the assistant's turns in it"
    masks = ", or give token ids with a loss mask (tokensField, lossMaskField)" * (row.rejected is None)
    return InputError(
        "spec.data.chatTemplate",
        f"a template {what.format(row.number)}",
        "a template whose conversations begin with their prompts, and have all of each message",
        f"Fix the tokenizer's template, or {hint}{masks}.",
    )


def drops_earlier_thoughts(row: Row) -> InputError:
    """Return the error of a template that leaves out the thought of an earlier turn once an answer follows."""
    return InputError(
        "spec.data.chatTemplate",
        f"a template that leaves out an earlier turn's thought once a later one follows, in row {row.number}",
        "conversations that begin with their prompts",
        "Make two rows of it: one that ends with the turn that has the thought, and one without that thought, whose "
        "turn has weight: 0. Or give token ids with a loss mask (tokensField, lossMaskField).",
    )


def opens_result(row: Row, mark: str) -> InputError:
    """Return the error of a template that opens what a tool returns within the turn that called it."""
    return InputError(
        "spec.data.chatTemplate",
        f"a template that ends a turn with calls by {mark} in row {row.number}, where the tool's result begins",
        f"{mark} as a stop token, since another one after it would be learned too",
        f"Add the id of {mark} to eos_token_id in the model's generation_config.json, or give token ids with a loss "
        "mask (tokensField, lossMaskField).",
    )


def fix_of_refusal(error: Exception, row: Row, messages: Sequence[Message]) -> str:
    """Return what to do about a template that fails for the messages of a row."""
    if odd := renaming(messages):
        return odd
    if undefined := re.search(r"'(\w+)' is undefined", str(error)):
        return f"Give it a value: spec.data.chatTemplateArguments: {{{undefined[1]}: ...}}, or fix the row's messages."
    if lacking := re.search(r"'dict object' has no attribute '(\w+)'", str(error)):
        first = f"Give the row's messages, calls or tools the key {lacking[1]!r} where the template reads it"
    elif type(error).__name__ == "TemplateSyntaxError":
        first = "Correct the template"
    elif re.search(r"\brole|alternat", str(error), re.IGNORECASE):
        first = "Fix the row's roles"
    else:
        first = "Change the row's messages as the template says"
    return f"{first}, or {other_or_none('takes them', row)}."


def other_or_none(does: str, row: Row) -> str:
    """Return how to name another template, or to use none where the row can do without: a conversation cannot."""
    bare = isinstance(row.prompt, str) and row.lesson is None and row.tools is None
    return f"{other_template(does)}{', or set spec.data.chatTemplate to false' * bare}"
