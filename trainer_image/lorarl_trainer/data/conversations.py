"""Which tokens of a conversation the assistant wrote, as it wrote them.

A chat template may mark them itself, by {% generation %} and {% endgeneration %}. Otherwise a turn is what the template
writes for it, where nothing follows, after the text that opens it. Some templates write a turn differently once others
follow: Qwen3's drops its thoughts. Then it is a separate lesson, after the history as it is written at that point.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from lorarl_trainer.data.called import CALLS
from lorarl_trainer.data.cells import ASSISTANT
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.lessons import Conversation
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.template_hints import unfit_template
from lorarl_trainer.data.turns import Turn, stops_within


class Learned(NamedTuple):
    """A sequence, and which of its tokens are learned."""

    ids: list[int]
    trained: list[bool]


def encode_conversation(row: Row, conversation: Conversation, encoder: PromptEncoder) -> list[Learned]:
    """Encode a conversation up to the last turn that is trained: as one sequence, if all turns are right in it.

    A turn includes the stop token after it, and not what the template writes after that. EOS is added if the template
    writes none.

    Raises:
        InputError: the template does not fit, or does not show where a turn begins and ends.
    """
    encoder.require_template(row)
    turns = [index for index, message in enumerate(conversation.messages) if message["role"] == ASSISTANT]
    trained = [turn for turn, one in zip(turns, conversation.trained, strict=True) if one]
    lessons = (_marked if encoder.marks_turns else _rendered)(row, conversation, trained, encoder)
    for lesson in lessons:
        lesson.trained[0] = False  # nothing comes before it
        if not any(lesson.trained):
            raise unfit_template(row, "that writes nothing for a turn of row {}")
    return lessons


def _rendered(row: Row, conversation: Conversation, trained: list[int], encoder: PromptEncoder) -> list[Learned]:
    messages = conversation.messages
    lessons: list[list[Turn]] = []
    for index in trained:
        turn = encoder.turn(row, messages[:index], messages[index])
        if not turn.ended and messages[index].get(CALLS):
            encoder.require_end(row, turn, messages[: index + 1])
        before = lessons[-1][-1] if lessons else None
        if before and before.ended and turn.opened.startswith(before.opened + before.answer):
            lessons[-1].append(turn)
        else:
            lessons.append([turn])
    return [_sequence(row, lesson, encoder) for lesson in lessons]


def _sequence(row: Row, turns: list[Turn], encoder: PromptEncoder) -> Learned:
    """Return the last of some turns, each of which the next one begins with."""
    texts: list[str] = []
    for turn in turns:
        texts += [turn.opened[sum(map(len, texts)) :], turn.answer]
    pieces = encoder.pieces(row, texts)
    pieces[-1] = encoder.closed(pieces[-1], turns[-1])
    trained = [place % 2 == 1 for place, piece in enumerate(pieces) for _ in piece]
    return Learned([token for piece in pieces for token in piece], trained)


def _marked(row: Row, conversation: Conversation, trained: list[int], encoder: PromptEncoder) -> list[Learned]:
    lessons: list[Learned] = []
    for index in trained:
        ids, start, end = _span(row, conversation, index, encoder)
        before = lessons.pop() if lessons and lessons[-1].ids == ids[: len(lessons[-1].ids)] else Learned([], [])
        lessons.append(Learned(ids, [*before.trained, *[False] * (start - len(before.ids)), *[True] * (end - start)]))
    return lessons


def _span(row: Row, conversation: Conversation, index: int, encoder: PromptEncoder) -> tuple[list[int], int, int]:
    """Return the ids up to a turn, and where its marked tokens begin and end: with its stop token, and not after it."""
    messages = conversation.messages[: index + 1]
    ids, mask = encoder.marked(row, messages)
    runs = [[place for place, _ in run] for one, run in groupby(enumerate(mask), key=lambda item: bool(item[1])) if one]
    count = sum(message["role"] == ASSISTANT for message in messages)
    if len(runs) != count:
        raise unfit_template(row, f"that marks {len(runs)} turns of {count} in row {{}}")
    start, end = runs[-1][0], runs[-1][-1] + 1
    end += end < len(ids) and ids[end] in encoder.stop_ids
    inside = stops_within(messages[-1]["content"], encoder.stops)
    stops = [place for place in range(start, end) if ids[place] in encoder.stop_ids]
    end = stops[inside] + 1 if len(stops) > inside else end
    encoder.marked_turn(row, ids[:end], start, messages[-1])
    return ids[:end], start, end
