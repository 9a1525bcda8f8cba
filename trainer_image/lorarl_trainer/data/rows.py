"""Reads the rows of a manifest's data source: a prompt, an answer, and the original row."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lorarl_api.v1alpha1 import DataSource, EvalSource
from lorarl_trainer.data.called import require_calls
from lorarl_trainer.data.cells import Prompt, answer_text, is_answer, prompt_of
from lorarl_trainer.data.columns import bare, cell, given, missing
from lorarl_trainer.data.context import tools_of, with_system
from lorarl_trainer.data.files import Fetch, read_file, read_hub
from lorarl_trainer.data.lessons import Conversation, Lesson, lesson_of
from lorarl_trainer.data.pairs import pair_of
from lorarl_trainer.data.reasoning_gym import generate_rows
from lorarl_trainer.errors import InputError

MOST_FAULTS = 1000
"""Rows that cannot be used are counted up to here."""
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a data source.

    Attributes:
        prompt: a text, or chat messages; of a conversation to learn, all of it.
        answer: the reference answer; None if the row has none, or one that is no text, and the run needs none. Of a
            pair, the chosen one.
        raw: the whole row, as reward functions receive it.
        number: position in the source, counted from 1 (the line number for .jsonl), for messages.
        rejected: the other answer of a pair; None without pairs.
        lesson: what sft learns in place of an answer; None if there is an answer.
        tools: JSON schemas that the chat template writes into the prompt; None without.
    """

    prompt: Prompt
    answer: str | None
    raw: dict[str, Any]
    number: int
    rejected: str | None = None
    lesson: Lesson | None = None
    tools: list[dict[str, Any]] | None = None


def load_rows(
    source: DataSource,
    *,
    field: str,
    needs_answer: bool,
    shows_answer: bool = False,
    fetch: Fetch,
    hub_token: str | None = None,
    pairs: bool = False,
) -> list[Row]:
    """Read all rows of a data source, in its order.

    Args:
        source: `spec.data.train` or `spec.data.eval`.
        field: the source's path in the manifest, for errors.
        needs_answer: whether to refuse rows without an answer. sft and the built-in rewards need one; reward functions
            may not.
        shows_answer: whether to refuse answers that are no texts or numbers, even if rows may have none, because a
            judge is shown them. Otherwise, where none is needed, they are for the reward to read from the row.
        fetch: returns the local file of a file:, s3://, gs:// or az:// URI.
        hub_token: access token for hf:// data sets.
        pairs: whether the rows are preference pairs, see `pairs.pair_of`.

    Raises:
        InputError: the source cannot be read or is empty, a row lacks a field or has one of a wrong type, or no row has
            the answerField that the manifest sets.
    """
    numbered = _numbered(source, field=field, fetch=fetch, hub_token=hub_token, pairs=pairs)
    rows, faults = [], []
    for number, read in numbered:
        raw = given(read)
        try:
            if pairs:
                rows.append(_pair(raw, number, source, field))
            else:
                rows.append(_row(raw, number, source, field, needs_answer=needs_answer, shows_answer=shows_answer))
        except InputError as error:
            faults.append((number, error))
            if len(faults) == MOST_FAULTS:
                break
    if faults:
        raise with_others(faults, in_all=not rows)
    if not rows:
        raise InputError(
            f"{field}.uri",
            f"{source.origin} with no rows",
            "at least one row",
            f"Set {field}.uri to a source with rows.",
        )
    if "answer_field" in source.model_fields_set and all(cell(row.raw, source.answer_field) is None for row in rows):
        where = f"row {rows[0].number} of {source.origin}"
        raise missing(rows[0].raw, source.answer_field, f"{field}.answerField", where, source)
    return rows


def _numbered(
    source: DataSource, *, field: str, fetch: Fetch, hub_token: str | None, pairs: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return the rows as they are read or made, each with its number; see `load_rows`."""
    if source.reasoning_gym is not None:
        return generate_rows(source.reasoning_gym, f"{field}.reasoningGym")
    if source.episodes is not None:
        seeds = range(source.episodes.seed, source.episodes.seed + source.episodes.size)
        return ((number, {"prompt": f"episode {seed}", "seed": seed}) for number, seed in enumerate(seeds, start=1))
    if source.origin.startswith("hf://"):
        split = source.split or ("test" if isinstance(source, EvalSource) else "train")
        return read_hub(source.origin.removeprefix("hf://"), source.subset, split, field=field, token=hub_token)
    texts = (source.prompt_field, source.answer_field, *(source.pair_fields if pairs else ()))
    return read_file(source.origin, field=field, fetch=fetch, text_columns=texts)


def with_others(faults: Sequence[tuple[int, InputError]], *, in_all: bool) -> InputError:
    """Return the first fault of some rows; it also names the next rows that have the same field wrong.

    Args:
        faults: the number of each row, and what is wrong with it; at most MOST_FAULTS.
        in_all: whether every row that was read has a fault.
    """
    _, first = faults[0]
    others = [number for number, error in faults[1:] if (error.field, error.expected) == (first.field, first.expected)]
    if not others:
        return first
    more = " or more" * (len(faults) == MOST_FAULTS)
    named = ", ".join(map(str, others[:_NAMED])) + ", ..." * (len(others) > _NAMED)
    if len(others) == 1:
        rows = f"row {named}"
    elif in_all and len(others) == len(faults) - 1:
        rows = f"all {'of the first ' * bool(more)}{len(faults):,} rows"
    else:
        rows = f"{len(others):,}{more} other rows ({named})"
    return InputError(first.field, f"{first.got}, and it is as wrong in {rows}", first.expected, first.hint)


def digest_of(rows: Sequence[Row]) -> str:
    """Return a SHA-256 over the rows as they were read: the same for .jsonl, .parquet and the hub."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(bare(row.raw), sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()


def _row(
    raw: dict[str, Any], number: int, source: DataSource, field: str, *, needs_answer: bool, shows_answer: bool
) -> Row:
    where = f"row {number} of {source.origin}"
    tools = tools_of(raw, source, field, where)
    if (lesson := lesson_of(raw, source, field, where)) is not None:
        prompt = lesson.messages if isinstance(lesson, Conversation) else ""
        return Row(prompt, None, raw, number, lesson=lesson, tools=tools)
    if (prompt_cell := cell(raw, source.prompt_field)) is None:
        raise missing(raw, source.prompt_field, f"{field}.promptField", where, source)
    answer = cell(raw, source.answer_field)
    if isinstance(answer, float) and math.isnan(answer):
        answer = None  # tables write a missing value as NaN
        raw = {**raw, source.answer_field: None} if source.answer_field in raw else raw
    if needs_answer and answer is None:
        raise missing(raw, source.answer_field, f"{field}.answerField", where, source)
    require_calls(prompt_cell, f"{field}.promptField", where)
    prompt = prompt_of(prompt_cell, f"{field}.promptField", where, source.prompt_field)
    prompt = with_system(prompt, raw, source, field, where)
    if not (needs_answer or shows_answer or is_answer(answer)):
        return Row(prompt, None, raw, number, tools=tools)
    text = answer_text(answer, f"{field}.answerField", where, source.answer_field)
    return Row(prompt, text, raw, number, tools=tools)


def _pair(raw: dict[str, Any], number: int, source: DataSource, field: str) -> Row:
    where = f"row {number} of {source.origin}"
    prompt, chosen, rejected = pair_of(raw, source, field, where)
    prompt = with_system(prompt, raw, source, field, where)
    return Row(prompt, chosen, raw, number, rejected, tools=tools_of(raw, source, field, where))
