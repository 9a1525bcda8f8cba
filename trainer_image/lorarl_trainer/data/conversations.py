"""Which tokens of a conversation the assistant wrote.

A chat template may mark them itself, by {% generation %} and {% endgeneration %}. Otherwise they are what a prefix of
the conversation has more tokens than the one before it, which opens the assistant's turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise

from lorarl_trainer.data.cells import Message
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.lessons import ASSISTANT, Conversation
from lorarl_trainer.data.rows import Row
from lorarl_trainer.errors import InputError

type Span = tuple[int, int]
"""The first token of a turn, and the one after its last."""


def encode_conversation(row: Row, conversation: Conversation, encoder: PromptEncoder) -> tuple[list[int], list[bool]]:
    """Encode a conversation up to the last turn that is trained: its ids, and whether each is trained.

    A turn includes the stop token after it, and not what the template writes after that. EOS is added after the last
    message if the template writes none, as for an answer.

    Raises:
        InputError: the template does not fit, or does not show where a turn begins and ends.
    """
    encoder.require_template(row)
    ids, spans = _marked(row, conversation, encoder) or _by_prefixes(row, conversation, encoder)
    trained = [False] * len(ids)
    for (start, end), is_trained in zip(spans, conversation.trained, strict=True):
        trained[max(1, start) : end] = [is_trained] * (end - max(1, start))
    if not any(trained):
        raise _not_shown(row, "whose trained turns have no tokens")
    end = max(index for index, one in enumerate(trained) if one) + 1
    return ids[:end], trained[:end]


def _marked(row: Row, conversation: Conversation, encoder: PromptEncoder) -> tuple[list[int], list[Span]] | None:
    found = encoder.assistant_mask(row, conversation.messages)
    if found is None:
        return None
    ids, mask = found
    spans: list[Span] = []
    for one, run in groupby(range(len(mask)), key=lambda index: bool(mask[index])):
        indices = list(run)
        if one:
            spans.append((indices[0], indices[-1] + 1))
    if len(spans) != len(conversation.trained):
        raise _not_shown(row, f"of which the template marks {len(spans)} turns of {len(conversation.trained)}")
    return ids, spans


def _by_prefixes(row: Row, conversation: Conversation, encoder: PromptEncoder) -> tuple[list[int], list[Span]]:
    messages = conversation.messages
    turns = [index for index, message in enumerate(messages) if message["role"] == ASSISTANT]
    texts = [encoder.render(row, messages[:turn], open_turn=True) for turn in turns]
    ids, starts = _with_starts(row, texts, encoder.render(row, messages, open_turn=False), encoder)
    spans: list[Span] = []
    for turn, start, limit in zip(turns, starts, [*starts[1:], len(ids)], strict=True):
        if turn == len(messages) - 1:
            ids = [*ids[:start], *encoder.closed(ids[start:])]
            spans.append((start, len(ids)))
            continue
        stop = next((index for index in range(start, limit) if ids[index] in encoder.stop_ids), None)
        spans.append((start, _end_of(row, messages[: turn + 1], ids, encoder) if stop is None else stop + 1))
    return ids, spans


def _with_starts(row: Row, opened: Sequence[str], whole: str, encoder: PromptEncoder) -> tuple[list[int], list[int]]:
    """Return the ids of a conversation, and where each of the assistant's turns begins in them.

    `opened` is the text before each of these turns, `whole` the text of all.
    """
    *before, ids = encoder.ids([*opened, whole])
    if all(ids[: len(part)] == part for part in before):
        return ids, [len(part) for part in before]
    if not (all(map(whole.startswith, opened)) and any(whole[len(text) :][:1].isspace() for text in opened)):
        raise _not_shown(row, "which does not begin as it does before one of the assistant's turns")
    # The white space that a turn begins with merged with the template's into one token; in a rollout it cannot. So each
    # turn is encoded by itself.
    parts = encoder.ids([whole[start:end] for start, end in pairwise([0, *map(len, opened), len(whole)])])
    return [token for part in parts for token in part], list(accumulate(map(len, parts[:-1])))


def _end_of(row: Row, messages: Sequence[Message], ids: list[int], encoder: PromptEncoder) -> int:
    """Return where the last of some messages ends, without white space after it."""
    (whole,) = encoder.ids([encoder.render(row, messages, open_turn=False)])
    if ids[: len(whole)] != whole:
        raise _not_shown(row, "in which one of the assistant's turns has no end")
    end = len(whole)
    while encoder.is_blank(ids[end - 1]):
        end -= 1
    return end


def _not_shown(row: Row, what: str) -> InputError:
    return InputError(
        "spec.data.chatTemplate",
        f"a template with a conversation in row {row.number} {what}",
        "a template that marks the assistant's turns, or writes them the same with and without what follows",
        "Put {% generation %} and {% endgeneration %} around the assistant's turns in the model's chat_template, or "
        "give token ids with a loss mask (tokensField and lossMaskField).",
    )
