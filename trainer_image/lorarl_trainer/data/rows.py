"""Reads the rows of a manifest's data source: a prompt, an answer, and the original row."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from lorarl_api.v1alpha1 import DataSource, EvalSource
from lorarl_trainer.data.files import Fetch, read_file, read_hub
from lorarl_trainer.data.gym import generate_rows
from lorarl_trainer.errors import InputError

Message = Mapping[str, Any]
"""One turn of a chat: `role` and `content`, both texts. Other keys are passed to the chat template unchanged."""
Prompt = str | list[Message]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a data source.

    Attributes:
        prompt: a text, or chat messages.
        answer: the reference answer; None if the row has none and the run needs none.
        raw: the whole row, as reward functions receive it.
        number: position in the source, counted from 1 (the line number for .jsonl), for messages.
    """

    prompt: Prompt
    answer: str | None
    raw: dict[str, Any]
    number: int


def load_rows(
    source: DataSource, *, field: str, needs_answer: bool, fetch: Fetch, hub_token: str | None = None
) -> list[Row]:
    """Read all rows of a data source, in its order.

    Args:
        source: `spec.data.train` or `spec.data.eval`.
        field: the source's path in the manifest, for errors.
        needs_answer: whether to refuse rows without an answer. sft and the built-in rewards need one; reward functions
            may not.
        fetch: returns the local file of a file:, s3://, gs:// or az:// URI.
        hub_token: access token for hf:// data sets.

    Raises:
        InputError: the source cannot be read or is empty, a row lacks a field or has one of a wrong type, or no row has
            the answerField that the manifest sets.
    """
    if source.reasoning_gym is not None:
        numbered = generate_rows(source.reasoning_gym, f"{field}.reasoningGym")
    elif source.origin.startswith("hf://"):
        split = source.split or ("test" if isinstance(source, EvalSource) else "train")
        numbered = read_hub(source.origin.removeprefix("hf://"), source.subset, split, field=field, token=hub_token)
    else:
        numbered = read_file(
            source.origin, field=field, fetch=fetch, text_columns=(source.prompt_field, source.answer_field)
        )
    rows = [_row(raw, number, source, field, needs_answer) for number, raw in numbered]
    if not rows:
        raise InputError(
            f"{field}.uri",
            f"{source.origin} with no rows",
            "at least one row",
            f"Set {field}.uri to a source with rows.",
        )
    if "answer_field" in source.model_fields_set and not any(source.answer_field in row.raw for row in rows):
        raise _missing(
            rows[0].raw, source.answer_field, f"{field}.answerField", f"row {rows[0].number} of {source.origin}"
        )
    return rows


def digest_of(rows: Sequence[Row]) -> str:
    """Return a SHA-256 over the rows as they were read: the same for .jsonl, .parquet and the hub."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row.raw, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()


def _row(raw: dict[str, Any], number: int, source: DataSource, field: str, needs_answer: bool) -> Row:
    where = f"row {number} of {source.origin}"
    if raw.get(source.prompt_field) is None:
        raise _missing(raw, source.prompt_field, f"{field}.promptField", where)
    if isinstance(answer := raw.get(source.answer_field), float) and math.isnan(answer):
        raw = {**raw, source.answer_field: None}  # tables write a missing value as NaN
    if needs_answer and raw.get(source.answer_field) is None:
        raise _missing(raw, source.answer_field, f"{field}.answerField", where)
    prompt = _prompt(raw[source.prompt_field], f"{field}.promptField", where)
    return Row(prompt, _answer(raw.get(source.answer_field), f"{field}.answerField", where), raw, number)


def _missing(raw: dict[str, Any], name: str, field: str, where: str) -> InputError:
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


def _prompt(value: Any, field: str, where: str) -> Prompt:
    if isinstance(value, str) and value.strip():
        return _unicode(value, field, where)
    if isinstance(value, list) and value and all(_is_message(message) for message in value):
        for message in value:
            _unicode(message["content"], field, where)
        return value
    empty = value == [] or (isinstance(value, str) and not value.strip())
    got = f"an empty {type(value).__name__}" if empty else f"{_brief(value)} ({type(value).__name__})"
    raise InputError(
        field,
        f"{got} in {where}",
        "a text, or a list of chat messages with role and content, both texts",
        "Write prompts as texts." if isinstance(value, int | float) else "Fix that row, or remove it.",
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def _answer(value: Any, field: str, where: str) -> str | None:
    """Return an answer as text.

    Numbers (`{"answer": 42}`) become the text that people write: 72.0 is 72, 1e-05 is 0.00001.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return _unicode(value, field, where)
    if isinstance(value, float) and math.isfinite(value):
        # A column of whole numbers with missing values is stored as floats.
        return f"{Decimal(repr(value)).normalize():f}" if value == 0 or 1e-30 < abs(value) < 1e16 else repr(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InputError(
        field,
        f"{_brief(value)} ({type(value).__name__}) in {where}",
        "a text or a number",
        "Write the answer as a text.",
    )


def _unicode(text: str, field: str, where: str) -> str:
    """Return the text unless it has an unpaired surrogate, which JSON can contain and no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        surrogate = ascii(text[error.start])[1:-1]
        raise InputError(
            field, f"an unpaired surrogate ({surrogate}) in {where}", "valid Unicode", "Fix that row, or remove it."
        ) from None
    return text


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
