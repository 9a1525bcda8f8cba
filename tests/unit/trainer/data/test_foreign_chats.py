"""Chats in the forms of other tools: the message says how to convert all rows, and not to fix one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.rows import Row, load_rows
from lorarl_trainer.data.tokenizer import stop_token_ids
from lorarl_trainer.errors import InputError
from support.tiny_tokenizers import CHATML

SHAREGPT = [{"from": "human", "value": "2+2"}, {"from": "gpt", "value": "4"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "2+2"}]}, {"role": "assistant", "content": "4"}]
FORMS = [
    (SHAREGPT, "These are messages as ShareGPT has them. Convert every row, for example with jq -c '.COLUMN |= map("),
    (PARTS, "Join the texts of each content into one text, in every row."),
    ([{"role": "user", "content": None}], "Give every message a content, or remove the messages without one, in every"),
    (
        [{"role": "user", "content": "a"}, {"role": "gpt", "content": None, "tool_calls": [{"id": 1}]}],
        "Give messages with tool_calls the role assistant, in every row.",
    ),
    ([{"role": "user", "text": "2+2"}], "Rename text to content, in every row."),
    ({"role": "user", "content": "2+2"}, "Put the message into a list, in every row."),
]


def refused(folder: Path, row: dict[str, Any], pairs: bool = False, **fields: str) -> InputError:
    path = folder / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    source = DataSource(uri=f"file:{path}", **fields)
    with pytest.raises(InputError) as caught:
        load_rows(source, field="spec.data.train", needs_answer=False, fetch=lambda _: path, pairs=pairs)
    return caught.value


@pytest.mark.parametrize(("chat", "hint"), FORMS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_prompt_and_a_conversation_say_how_to_convert(tmp_path: Path, chat: Any, hint: str) -> None:
    assert refused(tmp_path, {"prompt": chat}).hint.startswith(hint)
    assert refused(tmp_path, {"messages": chat}, messages_field="messages").hint.startswith(hint)


def test_messages_as_json_in_a_text_are_named(tmp_path: Path) -> None:
    error = refused(tmp_path, {"messages": json.dumps(PARTS)}, messages_field="messages")
    assert error.hint == "Store the messages as a list, not as JSON in a text, in every row."


def test_the_answers_of_pairs_say_how_to_convert(tmp_path: Path) -> None:
    row = {"prompt": "2+2", "chosen": SHAREGPT[1], "rejected": {"from": "gpt", "value": "5"}}
    assert refused(tmp_path, row, pairs=True).hint.startswith("These are messages as ShareGPT has them.")


def test_roles_in_capitals_are_named_where_nothing_would_be_learned(tmp_path: Path) -> None:
    chat = [{"role": "User", "content": "2+2"}, {"role": "Assistant", "content": "4"}]
    error = refused(tmp_path, {"messages": chat}, messages_field="messages")
    assert error.got.startswith("messages with the roles 'User', 'Assistant' in row 1 of ")
    assert error.hint == "Rename roles in every row: 'User' to user, 'Assistant' to assistant."


def test_a_template_that_refuses_a_role_names_it(tokenizer: Callable[..., Any]) -> None:
    strict = "{% if messages[0].role != 'user' %}{{ raise_exception('roles must alternate') }}{% endif %}" + CHATML
    tok = tokenizer(strict)
    encoder = PromptEncoder(tok, chat_template=True, stop_ids=stop_token_ids(tok, {}))
    with pytest.raises(InputError) as caught:
        encoder.encode_prompts([Row([{"role": "human", "content": "2+2"}], None, {}, 3)])
    assert caught.value.hint == "Rename roles in every row: 'human' to user."


@pytest.mark.parametrize(("role", "fixed"), [("developer", "system"), ("human", "user")])
def test_a_template_that_leaves_out_a_role_in_silence_is_refused(
    tokenizer: Callable[..., Any], role: str, fixed: str
) -> None:
    """In a prompt, and in a conversation to learn from. The hint's role is written."""
    known = "('system', 'user', 'assistant')"
    quiet = f"{{% for m in messages if m.role in {known} %}}{{{{ m.role }}}}: {{{{ m.content }}}}\n{{% endfor %}}"
    tok = tokenizer(quiet)
    encoder = PromptEncoder(tok, chat_template=True, stop_ids=stop_token_ids(tok, {}))
    said, asked = {"role": role, "content": "Be brief."}, {"role": "user", "content": "2+2"}
    with pytest.raises(InputError) as caught:
        encoder.encode_prompts([Row([said, asked], None, {}, 3)])
    assert caught.value.got == f"a template that leaves out the message with the role {role} of row 3"
    assert fixed in caught.value.hint
    with pytest.raises(InputError, match=f"leaves out the message with the role {role}"):
        encoder.marked(Row([], None, {}, 3), [asked, said, {"role": "assistant", "content": "4"}])
    encoder.encode_prompts([Row([said | {"role": fixed}, asked], None, {}, 3)])
