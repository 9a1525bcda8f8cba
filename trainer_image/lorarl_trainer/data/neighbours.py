"""Columns that a model was probably meant to see, and does not: each is named once, with what to do. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data.cells import brief
from lorarl_trainer.data.rows import Row

_SYSTEM = frozenset(["system", "system_prompt", "system_message", "sys", "sys_prompt", "developer", "persona"])
_TOOLS = frozenset(["tool", "function", "available_tool", "tool_definition", "tool_list", "function_definition", "api"])
_MEDIA = frozenset(["image", "img", "picture", "photo", "pixel_value", "video", "audio", "speech", "sound"])
_THOUGHTS = frozenset(
    ["reasoning", "reasoning_content", "thinking", "thought", "rationale", "cot", "chain_of_thought", "scratchpad"]
)
_TEXTS = frozenset(
    [
        *(
            "input",
            "context",
            "instruction",
            "question",
            "query",
            "problem",
            "prompt",
            "history",
            "passage",
            "document",
        ),
        *("paragraph", "background", "knowledge", "evidence", "article", "premise", "hypothesis", "choice", "option"),
        *("example", "table", "schema", "story", "dialogue", "dialog", "conversation", "message", "user", "body"),
    ]
)
_EMPTY_TEXTS = ("", "[]", "{}", "null", "none")


def unseen_columns(rows: Sequence[Row], source: DataSource, field: str, *, learned: bool) -> Iterator[str]:
    """Yield a warning for each column beside those that are used whose name says that the model should see it.

    Args:
        rows: of one source.
        source: its fields in the manifest.
        field: its path there.
        learned: whether answers are learned, of which thoughts would be a part.
    """
    used = {name.partition(".")[0] for name in source.columns}
    names = dict.fromkeys(name for row in rows for name in row.raw)
    for name in names:
        if name in used or not source.uri or not (fix := _fix(name, field, learned=learned)):
            continue
        if unseen := [
            row for row in rows if _is_something(row.raw.get(name)) and not _is_in_prompt(row.raw[name], row)
        ]:
            yield (
                f"{field}: the model does not see the column {name}, in which {len(unseen):,} of {len(rows):,} rows "
                f"have something, first row {unseen[0].number} ({brief(unseen[0].raw[name])}). {fix}"
            )


def _fix(name: str, field: str, *, learned: bool) -> str:
    plain = re.sub(r"[^a-z]+", "_", name.casefold()).strip("_").removesuffix("s")
    if plain in {one.removesuffix("s") for one in _SYSTEM}:
        return f"Set {field}.systemField to {name}, or remove the column."
    if plain in _TOOLS:
        return f"Set {field}.toolsField to {name}, or remove the column."
    if plain in _MEDIA:
        return "Images, videos and sound cannot be trained on."
    if plain in _THOUGHTS and learned:
        return "It is not learned. Write it into the answer as the chat template does (<think>), or remove the column."
    if plain in _TEXTS:
        return "Write it into the prompt of each row, or rename the column if only a reward reads it."
    return ""


def _is_something(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().casefold() not in _EMPTY_TEXTS
    return value is not None and value != [] and value != {}


def _is_in_prompt(value: Any, row: Row) -> bool:
    messages = row.prompt if isinstance(row.prompt, list) else [{"content": row.prompt}]
    return isinstance(value, str) and any(value.strip() in str(message["content"]) for message in messages)
