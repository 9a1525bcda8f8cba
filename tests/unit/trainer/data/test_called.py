"""Calls of tools in rows are learned and shown as they were given, or the template that leaves them out is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.encoding import encode_lessons
from lorarl_trainer.data.rows import Row, load_rows
from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.errors import InputError
from support.tiny_tokenizers import CHATML, SPECIAL, write_tokenizer

TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}"
OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def template(calls: str) -> str:
    return "{% for m in messages %}" + TURN + calls + "<|im_end|>\n{% endfor %}" + OPEN


FIRST_ALONE = template(
    "{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}{{ f.name }}{{ f.arguments | tojson }}{% endif %}"
)
WITHOUT_ARGUMENTS = template("{% for c in m.tool_calls %}[{{ c.function.name }}]{% endfor %}")
ALL = {
    "hermes": template(
        "{% for c in m.tool_calls %}<tool_call>\n{{ {'name': c.function.name, 'arguments': c.function.arguments}"
        " | tojson }}"
        "\n</tool_call>{% endfor %}"
    ),
    "qwen3_xml": template(
        "{% for c in m.tool_calls %}<tool_call>\n<function={{ c.function.name }}>\n"
        "{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}"
        "\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}"
    ),
    "glm45": template(
        "{% for c in m.tool_calls %}<tool_call>{{ c.function.name }}\n{% for k, v in c.function.arguments.items() %}"
        "<arg_key>{{ k }}</arg_key><arg_value>{{ v | tojson }}</arg_value>{% endfor %}</tool_call>{% endfor %}"
    ),
    "text alone": template(
        "{% for c in m.tool_calls %}{{ c.function.name + '\n' + c.function.arguments + '\n' }}{% endfor %}"
    ),
    "text or object": template(
        "{% for c in m.tool_calls %}[{{ c.function.name }}]{% if c.function.arguments is string %}"
        "{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}{% endfor %}"
    ),
}
ARGUMENTS = {"city": 'Rome "old"', "days": [1, 2], "unit": None}


def encoder(folder: Path, chat_template: str) -> tuple[Any, PromptEncoder]:
    tok = load_tokenizer(write_tokenizer(folder, template=chat_template, eos="<|im_end|>", special=SPECIAL))
    return tok, PromptEncoder(tok, chat_template=True, stop_ids=[tok.convert_tokens_to_ids("<|im_end|>")])


def chat(*calls: Any, **message: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", **message, "tool_calls": list(calls)},
        {"role": "tool", "content": "sun"},
        {"role": "assistant", "content": "Sun."},
    ]


def call(arguments: Any, name: str = "weather") -> dict[str, Any]:
    return {"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}}


def rows_of(path: Path, messages: list[dict[str, Any]], **fields: str) -> list[Row]:
    row = {"messages": messages, "answer": "1"}
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps(row) + "\n")
    source = DataSource(uri=f"file:{path}", **fields)
    return load_rows(source, field="spec.data.train", needs_answer=False, fetch=lambda _: path)


def learned(folder: Path, chat_template: str, messages: list[dict[str, Any]], file: str = "rows.jsonl") -> str:
    tok, own = encoder(folder, chat_template)
    rows = rows_of(folder / file, messages, messages_field="messages")
    options = {"max_prompt_tokens": 9999, "max_response_tokens": 9999, "field": "spec.data.train"}
    text = ""
    for lesson in encode_lessons(rows, own, **options).rows:
        trained = lesson.trained or [True] * len(lesson.answer_ids)
        text += tok.decode([one for one, is_trained in zip(lesson.answer_ids, trained, strict=True) if is_trained])
    return text


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("file", ["rows.jsonl", "rows.parquet"])
def test_arguments_in_a_text_are_learned_as_the_object_that_they_are(tmp_path: Path, family: str, file: str) -> None:
    """OpenAI's API has them as JSON in a text, and no content beside calls."""
    two = call(json.dumps(ARGUMENTS)), call("{}", "wait")
    found = learned(tmp_path, ALL[family], chat(*two, content=None), file)
    _, own = encoder(tmp_path, ALL[family])
    plain = chat(call(ARGUMENTS), call({}, "wait"), content="")
    turns = [own.turn(Row("", None, {}, 1), plain[:place], plain[place]).answer for place in (1, 3)]
    assert found == "".join(turns) and '"{' not in found
    assert "weather" in found and "wait" in found


@pytest.mark.parametrize(
    ("chat_template", "calls", "said"),
    [
        (CHATML, [call({"a": 1})], "leaves out the call of weather in row 1"),
        (CHATML, [call("{}")], "leaves out the call of weather in row 1"),
        (FIRST_ALONE, [call({"a": 1}), call({"a": 1})], "leaves out a later call of weather in row 1"),
        (
            WITHOUT_ARGUMENTS,
            [call({}), call({"a": 1}, "wait")],
            "leaves out a later call of wait in row 1",
        ),
    ],
)
def test_a_template_that_leaves_out_a_call_is_refused(
    tmp_path: Path, chat_template: str, calls: list[Any], said: str
) -> None:
    """In a turn to learn, in one before it, and in a prompt."""
    messages = chat(*calls, content="so")
    for given in (messages, [messages[0], messages[1] | {"weight": 0}, *messages[2:]]):
        with pytest.raises(InputError, match=said):
            learned(tmp_path, chat_template, given)
    _, own = encoder(tmp_path, chat_template)
    with pytest.raises(InputError, match=said):
        own.encode_prompts(rows_of(tmp_path / "rows.jsonl", messages[:-1], prompt_field="messages"))


def test_the_fixes_of_the_refusals_work(tmp_path: Path) -> None:
    [user, _, result, last] = chat()
    one, other = ({"role": "assistant", "content": "", "tool_calls": [call({"a": number})]} for number in (1, 2))
    assert learned(tmp_path, FIRST_ALONE, [user, one, result, other, result, last]).count("weather") == 2
    written = {"role": "assistant", "content": '[weather]{"a": 1}'}
    assert "weather" in learned(tmp_path, CHATML, [user, written, result, last])
