"""Calls in rows are as OpenAI's API has them, or flat. Others are refused with row, call and what it lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.rows import load_rows
from lorarl_trainer.errors import InputError
from support.tiny_tokenizers import CHATML
from unit.trainer.data.test_called import ALL, call, chat, encoder, learned, rows_of

FORM = 'Write a call as {"type": "function", "function": {'
RENAME = "Rename parameters to arguments, or add arguments: {}"
EXPECTED = "a JSON object, or the text of one"


def flat(arguments: Any, **more: Any) -> dict[str, Any]:
    return {"name": "weather", "arguments": arguments, **more}


def refusal(path: Path, messages: list[dict[str, Any]], **fields: str) -> InputError:
    with pytest.raises(InputError) as caught:
        rows_of(path, messages, **(fields or {"messages_field": "messages"}))
    return caught.value


@pytest.mark.parametrize(
    "arguments", ["{a: 2", "no JSON", "[1]", "null", '"{}"', " ", "[" * 100_000, [1], [], 3, False, 0]
)
@pytest.mark.parametrize("form", [call, flat])
def test_arguments_that_are_no_object_are_refused(tmp_path: Path, arguments: Any, form: Any) -> None:
    error = refusal(tmp_path / "rows.jsonl", chat(call({}), form(arguments)))
    assert error.field == "spec.data.train.messagesField" and error.expected == EXPECTED
    assert error.got.startswith("function.arguments ") and len(error.got) < 400
    assert " for weather in call 2 of message 2 of row 1 of file:" in error.got
    assert '{"city": "Rome"}' in error.hint


@pytest.mark.parametrize(
    ("wrong", "got", "hint"),
    [
        ({"function": {"arguments": {"a": 1}}}, "no function.name in call 1 ", FORM),
        ({"function": {"name": 3, "arguments": "{}"}}, "function.name 3 in call 1 ", FORM),
        ({"function": {"name": " ", "arguments": "{}"}}, "function.name ' ' in call 1 ", FORM),
        ({"id": "call00001", "type": "function"}, "no function.name in call 1 ", FORM),
        ({"arguments": {"a": 1}}, "no function.name in call 1 ", FORM),
        ({"function": "weather", "arguments": {"a": 1}}, "'weather' as the function in call 1 ", FORM),
        ("weather()", "'weather()' as the function in call 1 ", FORM),
        (
            {"name": "weather", "parameters": {"a": 1}},
            "function.parameters and no function.arguments in call 1 ",
            RENAME,
        ),
        (
            {"function": {"name": "weather", "parameters": {"a": 1}, "arguments": ""}},
            "function.parameters and no function.arguments in call 1 ",
            RENAME,
        ),
    ],
)
@pytest.mark.parametrize("file", ["rows.jsonl", "rows.parquet"])
def test_what_a_call_lacks_is_named(tmp_path: Path, wrong: Any, got: str, hint: str, file: str) -> None:
    """Whatever the message says besides: the row is not quoted in its place."""
    for said in ({"content": "so " * 50}, {}):
        error = refusal(tmp_path / file, chat(wrong, **said))
        assert error.got.startswith(f"{got}of message 2 of row 1 of file:") and error.hint.startswith(hint)


def test_calls_within_a_nested_column_are_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    source = DataSource(uri=f"file:{path}", messages_field="data.messages")
    for given in (flat('{"a": 2}'), call('{"a": 2}'), call({"a": 2, "b": None})):
        path.write_text(json.dumps({"data": {"messages": chat(given)}}) + "\n")
        [row] = load_rows(source, field="spec.data.train", needs_answer=False, fetch=lambda _: path)
        assert row.prompt[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"a": 2}}  # type: ignore[index]


def test_calls_in_a_text_are_no_list(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": '[{"name": "weather"}]'}]
    error = refusal(tmp_path / "rows.jsonl", messages)
    assert error.got.startswith("tool_calls '[{") and error.hint.startswith("Write them as a list, not as JSON in a")


def test_prompts_and_pairs_are_checked_too(tmp_path: Path) -> None:
    asked, last = chat(call("{a: 2"))[:-1], chat()[-1]
    error = refusal(tmp_path / "rows.jsonl", asked, prompt_field="messages")
    assert error.field == "spec.data.train.promptField" and error.expected == EXPECTED
    row = {"prompt": asked, "chosen": [*asked, last], "rejected": [*asked, last | {"content": "Rain."}]}
    for given, field in ((row, "chosenField"), (row | {"chosen": "Sun.", "rejected": "Rain."}, "promptField")):
        with pytest.raises(InputError, match=rf"spec\.data\.train\.{field}: .* call 1 of message 2 of row 1"):
            _pairs(tmp_path / "rows.jsonl", given)


def _pairs(path: Path, row: dict[str, Any]) -> None:
    path.write_text(json.dumps(row) + "\n")
    load_rows(
        DataSource(uri=f"file:{path}"), field="spec.data.train", needs_answer=False, fetch=lambda _: path, pairs=True
    )


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("file", ["rows.jsonl", "rows.parquet"])
def test_flat_calls_are_learned_as_nested_ones(tmp_path: Path, family: str, file: str) -> None:
    """Whether their arguments are a text or an object, and whatever stands beside them."""
    expected = learned(tmp_path, ALL[family], chat(call({"a": 2})))
    assert "weather" in expected
    for arguments in ('{"a": 2}', {"a": 2}):
        assert learned(tmp_path, ALL[family], chat(flat(arguments)), file) == expected
        [row] = rows_of(
            tmp_path / file, chat(flat(arguments, id="call00001", type="function")), messages_field="messages"
        )
        assert row.raw["messages"][1]["tool_calls"] == [call({"a": 2})]


@pytest.mark.parametrize("arguments", [{}, {"arguments": None}, {"arguments": ""}, {"arguments": "{}"}])
@pytest.mark.parametrize("family", ALL)
def test_a_call_without_arguments_has_an_empty_object(tmp_path: Path, family: str, arguments: dict[str, Any]) -> None:
    """As vLLM has it when it serves the model."""
    expected = learned(tmp_path, ALL[family], chat(call({}, "wait")))
    for one in ({"name": "wait", **arguments}, {"function": {"name": "wait", **arguments}}):
        assert learned(tmp_path, ALL[family], chat(one)) == expected


@pytest.mark.parametrize(
    ("chat_template", "fix"),
    [
        ("{{ raise_exception('Conversation roles must alternate') }}", "Fix the row's roles, or name a template that"),
        ("{{ raise_exception('Too long') }}", "Change the row's messages as the template says, or name a template"),
        ("{{ messages[0].tool_call_id.x }}", "Give the row's messages, calls or tools the key 'tool_call_id' where"),
        ("{{ absent + 1 }}", "Give it a value: spec.data.chatTemplateArguments: {absent: ...}, or fix the row's"),
        ("{{ '' }}", "Fix the template, or name a template that"),
    ],
)
def test_a_fix_of_a_refusal_leads_in_no_circle(tmp_path: Path, chat_template: str, fix: str) -> None:
    """Without a template, conversations and prompts of messages are refused; prompts of text are not."""
    _, own = encoder(tmp_path, chat_template)
    bare = "set spec.data.chatTemplate to false"
    with pytest.raises(InputError) as caught:
        learned(tmp_path, chat_template, chat(call({})))
    assert caught.value.hint.startswith(fix) and bare not in caught.value.hint
    for messages, is_offered in ((chat()[:1], False), ("Weather?", "chatTemplateArguments" not in fix)):
        with pytest.raises(InputError) as caught:
            own.encode_prompts(rows_of(tmp_path / "rows.jsonl", messages, prompt_field="messages"))
        assert caught.value.hint.startswith(fix) and (bare in caught.value.hint) == is_offered


def test_tools_and_calls_left_out_by_a_template_have_the_same_fixes(tmp_path: Path) -> None:
    _, own = encoder(tmp_path, CHATML)
    with pytest.raises(InputError) as of_tools:
        own.require_tools("spec.data.train.toolsField")
    with pytest.raises(InputError) as of_calls:
        learned(tmp_path, CHATML, chat(call({})))
    first, second = (
        caught.value.hint.replace(what, "WHAT").replace(where, "WHERE")
        for caught, what, where in (
            (of_tools, "tools into the system messages", "spec.data.train.toolsField"),
            (of_calls, "calls into content", "tool_calls"),
        )
    )
    assert first == second
    assert "spec.data.chatTemplateFile: file:PATH" in first and "docs/environments.md#tools" in first


def test_tools_without_a_template_are_refused_with_its_switch(tmp_path: Path) -> None:
    tok, _ = encoder(tmp_path, CHATML)
    bare = PromptEncoder(tok, chat_template=False, stop_ids=[3])
    with pytest.raises(
        InputError, match=r"with spec\.data\.chatTemplate: false.* Set spec\.data\.chatTemplate to true"
    ):
        bare.require_tools("spec.data.train.toolsField")
