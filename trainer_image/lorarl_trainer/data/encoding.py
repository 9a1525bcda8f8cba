"""Encodes the rows of a source and leaves out those that are too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lorarl_trainer.data.conversations import encode_conversation
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.lessons import Conversation
from lorarl_trainer.data.rows import Row
from lorarl_trainer.errors import InputError


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """A row with its tokens.

    Attributes:
        answer_ids: token ids of the answer to learn; empty if only the prompt is used. Of a pair, the chosen one's.
        rejected_ids: those of a pair's rejected answer.
        trained: which of the answer's tokens are learned; None for all. Others are what the assistant did not write.
    """

    row: Row
    prompt_ids: list[int]
    answer_ids: list[int]
    rejected_ids: Sequence[int] = ()
    trained: Sequence[bool] | None = None

    @property
    def length(self) -> int:
        """Tokens of the prompt and the answer."""
        return len(self.prompt_ids) + len(self.answer_ids)

    @property
    def longest_answer(self) -> int:
        """Tokens of the longer answer."""
        return max(len(self.answer_ids), len(self.rejected_ids))


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """The rows that fit, and how many do not.

    Attributes:
        long_prompts: number of rows left out because of their prompts.
        long_answers: number of rows left out because of their answers.
        same_answers: number of pairs left out because both answers have the same tokens, so that they teach nothing.
        long_conversations: number of conversations left out because of their length.
        split: number of conversations that are several rows here, one for each turn that the template writes otherwise
            once others follow.
    """

    rows: list[EncodedRow]
    long_prompts: int
    long_answers: int
    same_answers: int = 0
    long_conversations: int = 0
    split: int = 0


def encode_prompts(rows: Sequence[Row], encoder: PromptEncoder, *, max_prompt_tokens: int, field: str) -> EncodedRows:
    """Encode the prompts and leave out rows whose prompt is longer than `max_prompt_tokens`.

    `field`: the data source's path in the manifest, for errors.

    Raises:
        InputError: no row is left, or a prompt cannot be encoded.
    """
    encoded = [EncodedRow(row, ids, []) for row, ids in zip(rows, encoder.encode_prompts(rows), strict=True)]
    return _within(encoded, encoder, max_prompt_tokens, None, field)


def encode_examples(
    rows: Sequence[Row], encoder: PromptEncoder, *, max_prompt_tokens: int, max_response_tokens: int, field: str
) -> EncodedRows:
    """Encode prompts with the answers to learn, and leave out rows whose prompt or answer is too long.

    `rows`: rows of the source; all have an answer. `field`: the data source's path in the manifest, for errors.

    Raises:
        InputError: no row is left, or a row cannot be encoded.
    """
    encoded = [EncodedRow(row, *encoder.encode_example(row)) for row in rows]
    return _within(encoded, encoder, max_prompt_tokens, max_response_tokens, field)


def encode_pairs(
    rows: Sequence[Row], encoder: PromptEncoder, *, max_prompt_tokens: int, max_response_tokens: int, field: str
) -> EncodedRows:
    """Encode preference pairs, and leave out rows whose prompt or one of whose answers is too long.

    See `encode_examples`. Pairs whose answers have the same tokens are left out too.
    """
    pairs = [(row, *encoder.encode_pair(row)) for row in rows]
    different = [EncodedRow(*pair) for pair in pairs if pair[2] != pair[3]]
    if not different:
        raise InputError(
            field,
            f"{len(rows)} pairs, in each of which both answers have the same tokens",
            "pairs whose answers differ",
            f"Set {field}.chosenField and {field}.rejectedField to the columns with the two answers.",
        )
    fitting = _within(different, encoder, max_prompt_tokens, max_response_tokens, field)
    return replace(fitting, same_answers=len(pairs) - len(different))


def encode_lessons(
    rows: Sequence[Row], encoder: PromptEncoder, *, max_prompt_tokens: int, max_response_tokens: int, field: str
) -> EncodedRows:
    """Encode conversations, or tokens with a mask, and leave out those that are longer than both limits together.

    What comes before the first token that is learned is the prompt. What comes after the last one is left out. A
    conversation is several rows if the chat template writes turns otherwise once others follow.
    """
    by_row = [_encoded_lessons(row, encoder) for row in rows]
    encoded = [lesson for lessons in by_row for lesson in lessons]
    for row in encoded:
        encoder.require_embedded(row.row, (*row.prompt_ids, *row.answer_ids), field)
    lengths, limit = [row.length for row in encoded], max_prompt_tokens + max_response_tokens
    left = [row for row, length in zip(encoded, lengths, strict=True) if length <= limit]
    if not left:
        raise InputError(
            "spec.rollout.maxResponseTokens",
            f"{max_response_tokens}, but every conversation of {field} has more tokens than that and "
            f"spec.rollout.maxPromptTokens ({max_prompt_tokens}) together ({min(lengths)} to {max(lengths)} tokens, "
            f"{len(lengths)} rows)",
            "at least one conversation that fits",
            f"Set spec.rollout.maxResponseTokens to {max(lengths) - max_prompt_tokens} to keep all rows.",
        )
    split = sum(len(lessons) > 1 for lessons in by_row)
    return EncodedRows(left, 0, 0, long_conversations=len(encoded) - len(left), split=split)


def _encoded_lessons(row: Row, encoder: PromptEncoder) -> list[EncodedRow]:
    if isinstance(row.lesson, Conversation):
        return [_encoded_lesson(row, *lesson) for lesson in encode_conversation(row, row.lesson, encoder)]
    assert row.lesson is not None, "load_rows reads a lesson of every row, or of none"
    return [_encoded_lesson(row, row.lesson.ids, row.lesson.trained)]


def _encoded_lesson(row: Row, ids: list[int], trained: list[bool]) -> EncodedRow:
    first = trained.index(True)
    end = max(index for index, one in enumerate(trained) if one) + 1
    mask = trained[first:end]
    return EncodedRow(row, ids[:first], ids[first:end], trained=None if all(mask) else mask)


def _within(
    rows: list[EncodedRow], encoder: PromptEncoder, max_prompt_tokens: int, max_response_tokens: int | None, field: str
) -> EncodedRows:
    for row in rows:
        encoder.require_embedded(row.row, (*row.prompt_ids, *row.answer_ids, *row.rejected_ids), field)
    if empty := [row.row.number for row in rows if not row.prompt_ids]:
        raise InputError(
            field,
            f"row {empty[0]}, whose prompt has no tokens ({len(empty)} such rows)",
            "at least one token",
            "Remove these rows.",
        )
    short = [row for row in rows if len(row.prompt_ids) <= max_prompt_tokens]
    if not short:
        raise _none_left("maxPromptTokens", max_prompt_tokens, "prompt", [len(row.prompt_ids) for row in rows], field)
    left = [row for row in short if max_response_tokens is None or row.longest_answer <= max_response_tokens]
    if not left and max_response_tokens is not None:
        raise _none_left(
            "maxResponseTokens", max_response_tokens, "answer", [row.longest_answer for row in short], field
        )
    return EncodedRows(left, long_prompts=len(rows) - len(short), long_answers=len(short) - len(left))


def _none_left(limit_name: str, limit: int, what: str, lengths: list[int], field: str) -> InputError:
    return InputError(
        f"spec.rollout.{limit_name}",
        f"{limit}, but every {what} of {field} is longer ({min(lengths)} to {max(lengths)} tokens, {len(lengths)} "
        "rows)",
        f"at least one {what} that fits",
        f"Set spec.rollout.{limit_name} to {max(lengths)} to keep all rows.",
    )
