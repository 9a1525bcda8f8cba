"""Chats in the forms of other tools: the message says how to convert all rows, and not to fix one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
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
    (SHAREGPT, "These are messages as ShareGPT has them. Convert every row, for example with jq -c '.["),
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
    assert refused(tmp_path, row, pairs=True).hint == "Set spec.data.train.chosenField to chosen.value."
    path = tmp_path / "rows.jsonl"
    fields = {"chosen_field": "chosen.value", "rejected_field": "rejected.value"}
    source = DataSource(uri=f"file:{path}", **fields)
    (pair,) = load_rows(source, field="spec.data.train", needs_answer=False, fetch=lambda _: path, pairs=True)
    assert (pair.answer, pair.rejected) == ("4", "5")


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_the_command_for_sharegpt_works(tmp_path: Path) -> None:
    chat = refused(tmp_path, {"data": {"my chat": SHAREGPT}}, messages_field="data.my chat").hint
    (command,) = re.findall(r"for example with (jq -c '.*')\.$", chat)
    done = subprocess.run(f"{command} rows.jsonl", shell=True, cwd=tmp_path, capture_output=True, text=True)
    converted = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]
    assert json.loads(done.stdout) == {"data": {"my chat": converted}}, done.stderr


@pytest.mark.parametrize("chat", [SHAREGPT, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]])
def test_whole_conversations_lead_to_their_field(tmp_path: Path, chat: Any) -> None:
    hint = "For sft, set spec.data.train.messagesField to turns: it has whole conversations. Otherwise add the column."
    assert refused(tmp_path, {"turns": chat}).hint == hint
    asked = refused(tmp_path, {"turns": chat[:1]}).hint
    assert asked == "Set spec.data.train.promptField to one of them, or add the column."


@pytest.mark.parametrize("content", ["Let me look.", None])
@pytest.mark.parametrize("column", ["messages", "prompt"])
def test_a_call_of_the_old_form_is_refused(tmp_path: Path, column: str, content: str | None) -> None:
    called = {"role": "assistant", "content": content, "function_call": {"name": "f", "arguments": "{}"}}
    chat = [{"role": "user", "content": "2+2"}, called]
    fields = {"messages_field": "messages"} if column == "messages" else {}
    error = refused(tmp_path, {column: chat}, **fields)
    assert error.got.startswith("function_call in message 2 of row 1 of ")
    assert error.hint.startswith('Write it as tool_calls: [{"type": "function", ')


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
