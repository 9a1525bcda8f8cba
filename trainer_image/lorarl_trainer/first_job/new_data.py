"""What `lorarl init` sees in the data: columns, lengths, and held-out rows beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from lorarl_trainer.data.files import read_file
from lorarl_trainer.errors import InputError
from lorarl_trainer.storage.downloads import local_path

PROMPTS = ("prompt", "question", "messages", "problem", "instruction", "input", "query", "text")
ANSWERS = ("answer", "solution", "response", "output", "target", "completion", "label", "ground_truth")
CHOSEN, REJECTED = ("chosen", "preferred", "better", "accepted"), ("rejected", "dispreferred", "worse")
HELD_OUT = ("held_out", "heldout", "eval", "test", "validation", "valid", "dev")
"""Usual names of columns, and of files with held-out rows, the likeliest first."""
PROMPT_AND_ANSWER = {"promptField": "prompt", "answerField": "answer"}
_MEANINGS = {
    "promptField": "prompt",
    "answerField": "answer",
    "chosenField": "preferred answer",
    "rejectedField": "other answer",
}
_ON_THE_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_SAMPLED_ROWS, _TEMPLATE_TOKENS = 200, 32


@dataclass(frozen=True)
class Sample:
    """Some rows of a data file on this machine, for what a job's settings should be.

    Attributes:
        columns: of the rows; empty where the data is elsewhere.
        prompt_tokens: about how many tokens a prompt has.
        longest_prompt: about how many the longest one has; 0 if that is not known.
        answer_tokens: about how many the longest answer has; 0 if that is not known.
        chats: columns with whole conversations.
    """

    columns: list[str]
    prompt_tokens: int = 64
    longest_prompt: int = 0
    answer_tokens: int = 0
    chats: tuple[str, ...] = ()


def data_uri(data: str, folder: Path) -> str:
    """Return a data source as a URI: a file on this machine, a data set of the hub (ORG/NAME), or a URI as it is.

    A file keeps its relative path if the job is run where it was named.
    """
    if "://" in data or data.startswith("file:"):
        return data
    if _ON_THE_HUB.fullmatch(data) and not Path(data).suffix and not Path(data).exists():
        return f"hf://{data}"
    return f"file:{data}" if folder.resolve() == Path.cwd() else f"file://{Path(data).resolve()}"


def held_out_beside(data: str) -> str | None:
    """Return the URI of a file with held-out rows beside a data file on this machine; None if there is none."""
    if not data.startswith("file:"):
        return None
    path = local_path(data, "--data")
    own = (f"{stem}{between}{name}" for stem in _stems(path.stem) for between in "_-." for name in HELD_OUT)
    names = (f"{name}{path.suffix}" for name in (*own, *HELD_OUT) if name != path.stem)
    found = next((name for name in names if (path.parent / name).is_file()), None)
    return found and re.sub(r"[^/:]+$", found, data)


def _stems(stem: str) -> list[str]:
    """Return what names of files with held-out rows may begin with: `sea` and `sea_train` have `sea_test` beside."""
    return list(dict.fromkeys([stem, re.sub(r"[_.-]?train(ing)?$", "", stem) or stem]))


def beside(data: str) -> str:
    """Return where held-out rows would be: a file of the same kind in the same folder; on the hub, another split."""
    return data if data.startswith("hf://") else re.sub(r"[^/:]+(\.\w+)$", r"held_out\1", data)


def sample_of(uri: str) -> Sample:
    """Return what the first rows of a data file on this machine have. Raises InputError if the file cannot be read."""
    if not uri.startswith("file:"):
        return Sample([])
    read = read_file(uri, field="--data", fetch=lambda name: local_path(name, "--data"), text_columns=())
    rows = [row for _, row in islice(read, _SAMPLED_ROWS)]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    prompts = [_tokens(row[name]) for name in columns if name.lower() in PROMPTS for row in rows if row.get(name)]
    answers = [
        _tokens(row[name])
        for name in columns
        if name.lower() in (*ANSWERS, *CHOSEN, *REJECTED)
        for row in rows
        if row.get(name) is not None
    ]
    chats = tuple(name for name in columns if any(_has_answer(row.get(name)) for row in rows))
    mean = sum(prompts) // len(prompts) if prompts else 0
    longest = _TEMPLATE_TOKENS + max(prompts) if prompts else 0
    return Sample(columns, _TEMPLATE_TOKENS + mean, longest, max(answers, default=0), chats)


def _tokens(value: Any) -> int:
    """Return about how many tokens a cell has."""
    return len(value if isinstance(value, str) else json.dumps(value, default=str)) // 3 + 2


def _has_answer(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(one, dict) and one.get("role") == "assistant" for one in value)


def choose_columns(
    sample: Sample, algorithm: str, named: Mapping[str, str | None], *, own_reward: bool
) -> dict[str, str]:
    """Return the column of each field of the data source: those that are named, or else the likeliest ones.

    `own_reward`: whether the reward is a function, which may need no answer.

    Raises:
        InputError: a column that is not named has no usual name.
    """
    if algorithm == "sft" and sample.chats and not any(named.values()):
        return {"messagesField": sample.chats[0]}
    usual: dict[str, tuple[str, ...]] = {"promptField": PROMPTS, "answerField": ANSWERS}
    if algorithm == "dpo":
        usual = {"promptField": PROMPTS, "chosenField": CHOSEN, "rejectedField": REJECTED}
    chosen = {name: named.get(name) or _likeliest(sample.columns, names) for name, names in usual.items()}
    if chosen.get("answerField", "") is None and algorithm == "grpo" and own_reward:
        del chosen["answerField"]
    if chosen["promptField"] is None and algorithm == "dpo" and chosen["chosenField"] in sample.chats:
        del chosen["promptField"]
    if not (unknown := [name for name, column in chosen.items() if column is None]):
        return {name: column for name, column in chosen.items() if column is not None}
    options = {name: f"--{name.removesuffix('Field')}-field" for name in unknown}
    free = [column for column in sample.columns if column not in chosen.values()]
    example = " ".join(f"{options[name]} {column}" for name, column in zip(unknown, free, strict=False))
    raise InputError(
        " and ".join(options.values()),
        f"nothing, and data with the columns {', '.join(sample.columns)}",
        " and ".join(f"the column with the {_MEANINGS[name]}" for name in unknown),
        f"Name them, for example {example}." if example else "Check the data.",
    )


def _likeliest(columns: Sequence[str], usual: Sequence[str]) -> str | None:
    """Return the first column with a usual name; the most usual name where the columns are not known."""
    by_name = {column.lower(): column for column in columns or usual[:1]}
    return next((by_name[name] for name in usual if name in by_name), None)
