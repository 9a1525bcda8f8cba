"""Columns beside those that are used: a system message and tools are used, and others are named, not dropped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.neighbours import unseen_columns
from lorarl_trainer.data.rows import Row, load_rows
from lorarl_trainer.data.tokenizer import stop_token_ids
from lorarl_trainer.errors import InputError
from support.tiny_tokenizers import CHATML

FIELD = "spec.data.train"
PROMPT = {"prompt": "Which city?", "answer": "Oslo"}
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "salut"}]
TOOL = {"type": "function", "function": {"name": "add"}}


def load(folder: Path, *rows: dict[str, Any], pairs: bool = False, **fields: str) -> tuple[list[Row], DataSource]:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = DataSource(uri=f"file:{path}", **fields)
    return load_rows(source, field=FIELD, needs_answer=not pairs, fetch=lambda _: path, pairs=pairs), source


def told(folder: Path, *rows: dict[str, Any], learned: bool = True, **fields: str) -> list[str]:
    return list(unseen_columns(*load(folder, *rows, **fields), FIELD, learned=learned))


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("system", "Answer in French.", "Set spec.data.train.systemField to system"),
        ("System Prompt", "Be brief.", "Set spec.data.train.systemField to System Prompt"),
        ("tools", [TOOL], "Set spec.data.train.toolsField to tools"),
        ("functions", json.dumps([TOOL]), "toolsField"),
        ("input", "The city lies in Norway.", "Write it into the prompt"),
        ("context", ["a", "b"], "Write it into the prompt"),
        ("documents", [{"text": "a"}], "Write it into the prompt"),
        ("history", [["a", "b"]], "Write it into the prompt"),
        ("images", ["a.png"], "cannot be trained on"),
        ("reasoning", "It is the capital.", "It is not learned."),
    ],
)
def test_a_column_that_the_model_should_see_is_named_with_a_fix(
    tmp_path: Path, name: str, value: object, fix: str
) -> None:
    (warning,) = told(tmp_path, PROMPT, PROMPT | {name: value}, PROMPT | {name: value})
    assert f"the column {name}, in which 2 of 3 rows have something, first row 2 (" in warning and fix in warning


def test_columns_that_are_empty_used_or_of_a_reward_are_not_named(tmp_path: Path) -> None:
    extra = {"system": "", "tools": "[]", "input": None, "images": [], "id": 3, "level": "hard", "question": "city?"}
    assert told(tmp_path, PROMPT | extra) == [], "the question is in the prompt"
    assert told(tmp_path, PROMPT | {"reasoning": "hm"}, learned=False) == [], "no answer is learned"
    fields = {"system_field": "system", "tools_field": "tools"}
    assert told(tmp_path, PROMPT | {"system": "Be brief.", "tools": [TOOL]}, **fields) == []
    nested = {"input": {"question": "Which city?"}, "answer": "Oslo"}
    assert told(tmp_path, nested, prompt_field="input.question") == []


def test_a_system_message_comes_before_a_prompt_a_pair_and_a_conversation(tmp_path: Path) -> None:
    brief = {"role": "system", "content": "Be brief."}
    raw = PROMPT | {"system": "Be brief.", "chat": CHAT, "chosen": "Oslo", "rejected": "Rome"}
    ((row,), _) = load(tmp_path, raw, system_field="system")
    assert row.prompt == [brief, {"role": "user", "content": "Which city?"}]
    ((pair,), _) = load(tmp_path, raw, pairs=True, system_field="system")
    assert pair.prompt == row.prompt
    ((chat,), _) = load(tmp_path, raw, messages_field="chat", system_field="system")
    assert chat.prompt == [brief, *CHAT]
    ((without,), _) = load(tmp_path, PROMPT | {"system": None}, system_field="system")
    assert without.prompt == "Which city?"
    ((same,), _) = load(tmp_path, {"system": "Be brief.", "chat": [brief, *CHAT]}, messages_field="chat")
    assert same.prompt == [brief, *CHAT]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"system": 5}, r"spec\.data\.train\.systemField: got 5 \(int\) in row 1"),
        (
            {"prompt": [{"role": "system", "content": "x"}, CHAT[0]], "system": "y"},
            "another system message, 'x', in row",
        ),
        ({"tools": "add"}, r"spec\.data\.train\.toolsField: got 'add' in row 1"),
        ({"tools": ["add"]}, r"toolsField: got \['add'\] in row 1"),
    ],
)
def test_what_is_no_system_message_and_no_tools_is_refused(tmp_path: Path, raw: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(tmp_path, PROMPT | raw, system_field="system", tools_field="tools")


@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL])])
def test_the_chat_template_writes_the_tools(tmp_path: Path, tokenizer: Callable[..., Any], tools: object) -> None:
    tok = tokenizer("{% for tool in tools or [] %}{{ tool.function.name }}\n{% endfor %}" + CHATML)
    encoder = PromptEncoder(tok, chat_template=True, stop_ids=stop_token_ids(tok, {}))
    encoder.require_tools(f"{FIELD}.toolsField")
    (rows, _) = load(tmp_path, PROMPT | {"tools": tools}, PROMPT | {"tools": "[]"}, tools_field="tools")
    first, second = map(tok.decode, encoder.encode_prompts(rows))
    assert first == f"add\n{second}"
    assert tok.decode(encoder.encode_example(rows[0])[0]) == first


def test_a_template_without_tools_is_refused(tokenizer: Callable[..., Any]) -> None:
    tok = tokenizer()
    encoder = PromptEncoder(tok, chat_template=True, stop_ids=stop_token_ids(tok, {}))
    with pytest.raises(InputError, match="a column of tools, which the model's chat template does not write"):
        encoder.require_tools(f"{FIELD}.toolsField")
