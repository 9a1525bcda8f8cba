"""What a run reads of its rows, and what it warns of, by the job's rewards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.inputs import (
    EncodedData,
    Vocabulary,
    encode_rows,
    load_vocabulary,
    prompt_encoder,
    read_rows,
)
from support.tiny_tokenizers import CHATML, write_tokenizer
from unit.contract.manifests import manifest

JUDGE = {"url": "http://judge:8000/v1", "model": "judge"}


def read(folder: Path, rows: list[dict[str, Any]], changes: dict[str, Any], template: str = CHATML) -> EncodedData:
    """Read and encode the rows of a job, which are trained on and held out."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = {"spec.data.train.uri": f"file:{path}", "spec.data.eval.uri": f"file:{path}"}
    spec = LoRARLJob.model_validate(manifest(sources | changes)).spec
    tokenizer = load_tokenizer(write_tokenizer(folder / "model", template=template))
    return encode_rows(spec, read_rows(spec, {}), Vocabulary(tokenizer, (3,)))


OWN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[me]{% endif %}"
TURNS = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"


def vocabulary_with(folder: Path, template: bytes | None, base_template: str | None = CHATML) -> Vocabulary:
    """Load the vocabulary of a job with its own chat template."""
    write_tokenizer(folder / "model", template=base_template)
    (folder / "model" / "config.json").write_text('{"vocab_size": 128}')
    (folder / "model" / "model.safetensors").touch()
    if template is not None:
        (folder / "own.jinja").write_bytes(template)
    changes = {"spec.model.uri": f"file:{folder}/model", "spec.data.chatTemplateFile": f"file:{folder}/own.jinja"}
    return load_vocabulary(LoRARLJob.model_validate(manifest(changes)).spec, {})


@pytest.mark.parametrize("base_template", [CHATML, None], ids=["another template", "no template"])
def test_a_chat_template_of_the_job_s_own_takes_the_place_of_the_model_s(
    tmp_path: Path, base_template: str | None
) -> None:
    vocabulary = vocabulary_with(tmp_path, OWN.encode(), base_template)
    assert vocabulary.own_template == OWN
    encoder = prompt_encoder(LoRARLJob.model_validate(manifest()).spec, vocabulary)
    row = Row("hello", None, {"prompt": "hello"}, 1)
    assert vocabulary.decode_prompts(encoder.encode_prompts([row])) == ["[user] hello\n[me]"]


def test_a_template_may_use_what_transformers_adds_to_jinja(tmp_path: Path) -> None:
    assert vocabulary_with(tmp_path, TURNS.encode()).own_template == TURNS


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, r"own.jinja, which cannot be read \(FileNotFoundError.*Name the file with the template"),
        (b"", r"own.jinja, which does not read messages, expected a Jinja chat template"),
        (b"{{ prompt }}", r"own.jinja, which does not read messages"),
        (b"{% for m in messages %}\n{{ m.content }}", r"own.jinja, whose line 2 is not Jinja \(.*Fix line 2"),
        (b"\xff\xfe", r"own.jinja, which cannot be read \(UnicodeDecodeError"),
    ],
    ids=["no file", "empty", "no messages", "an open loop", "no text"],
)
def test_a_file_that_is_no_template_is_refused_by_its_field(
    tmp_path: Path, template: bytes | None, message: str
) -> None:
    with pytest.raises(InputError, match=rf"spec.data.chatTemplateFile: got file:.*{message}"):
        vocabulary_with(tmp_path, template)


LISTS = [{"prompt": "the capital of France", "answer": ["Paris", "paris"]}]


@pytest.mark.parametrize(
    "reward",
    [{"function": "a:b"}, {"type": "format", "pattern": "a"}, {"server": JUDGE | {"instruction": "{completion}?"}}],
    ids=str,
)
def test_a_reward_without_answers_leaves_them_in_the_row(tmp_path: Path, reward: dict[str, Any]) -> None:
    data = read(tmp_path, LISTS, {"spec.reward": reward})
    (row,) = data.train
    assert (row.row.answer, row.row.raw["answer"]) == (None, ["Paris", "paris"])
    told = [warning for warning in data.warnings if "no text or number" in warning]
    assert [warning.partition(":")[0] for warning in told] == [
        "spec.data.train.answerField",
        "spec.data.eval.answerField",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"spec.reward": {"type": "exact"}},
        {"spec.reward": {"server": JUDGE}},
        {"spec.reward": None, "spec.algorithm.type": "sft"},
    ],
    ids=str,
)
def test_what_sees_the_answers_refuses_others_than_texts(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"answerField: got \['Paris', 'paris'\] \(list\) in row 1 of"):
        read(tmp_path, LISTS, changes)


LLAMA_3_2 = (
    """{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}"""
    + CHATML
)
SMOLLM3 = '{%- set today = strftime_now("%d %B %Y") -%}{{- "Today Date: " ~ today ~ "\\n" -}}' + CHATML
DEFAULT_SYSTEM = (
    '{%- set today = strftime_now("%Y-%m-%d") %}'
    "{% if messages[0].role != 'system' %}The current date is {{ today }}.{% endif %}"
) + CHATML
"""As Mistral's: only where the messages have no system message."""
SUMS = [{"prompt": "1+1", "answer": "2"}, {"prompt": "2+2", "answer": "4"}]
WITH_SYSTEM = [
    {"prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"}], "answer": "2"},
]


def dates(*args: Any) -> list[str]:
    return [warning for warning in read(*args).warnings if "today's date" in warning]


@pytest.mark.parametrize("template", [LLAMA_3_2, SMOLLM3, DEFAULT_SYSTEM], ids=["Llama 3.2", "SmolLM3", "default"])
def test_a_template_that_writes_the_date_is_one_warning(tmp_path: Path, template: str) -> None:
    (told,) = dates(tmp_path, SUMS, {}, template)
    assert "first in row 1 of spec.data.train. A run that resumes on another day has other prompts" in told
    argument = 'Set spec.data.chatTemplateArguments to {date_string: "26 Jul 2024"}, or another date.'
    assert told.endswith(argument) == (template == LLAMA_3_2)
    (other,) = dates(tmp_path, [*WITH_SYSTEM, *SUMS], {}, template)
    assert ("row 2 of" in other) == (template == DEFAULT_SYSTEM)


def test_a_conversation_with_the_date_is_warned_of_too(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    sft = {"spec.reward": None, "spec.algorithm.type": "sft"}
    fields = {"spec.data.train.messagesField": "chat", "spec.data.eval.messagesField": "chat"}
    assert len(dates(tmp_path, [{"chat": chat}], sft | fields, LLAMA_3_2)) == 1
    ready = {"spec.data.train.tokensField": "ids", "spec.data.train.lossMaskField": "mask"}
    ready |= {"spec.data.eval.tokensField": "ids", "spec.data.eval.lossMaskField": "mask"}
    assert dates(tmp_path, [{"ids": [5, 6], "mask": [0, 1]}], sft | ready, LLAMA_3_2) == [], "no template is applied"


def test_prompts_that_are_the_same_on_each_day_are_no_warning(tmp_path: Path) -> None:
    arguments = {"spec.data.chatTemplateArguments": {"date_string": "26 Jul 2024"}}
    assert dates(tmp_path, SUMS, arguments, LLAMA_3_2) == []
    assert dates(tmp_path, SUMS, {"spec.data.chatTemplate": False}, LLAMA_3_2) == []
    assert dates(tmp_path, WITH_SYSTEM, {}, DEFAULT_SYSTEM) == []
    assert dates(tmp_path, SUMS, {}) == []


@pytest.mark.parametrize("way", [{"function": "m:C"}, {"agent": "m:f"}])
def test_a_class_or_an_agent_gets_all_rows_whatever_is_in_them(tmp_path: Path, way: dict[str, str]) -> None:
    rows = [{"prompt": text, "system": "Be brief.", "context": "of it"} for text in ("a" * 99, "b" * 9)]
    changes = {"spec.reward": None, "spec.environment": way, "spec.rollout.maxPromptTokens": 40}
    data = read(tmp_path, rows, changes | {"spec.rollout.promptsPerStep": 2})
    assert [row.row.raw for row in data.train] == rows and not data.warnings
    assert max(len(row.prompt_ids) for row in data.train) == 40, "the check at the start has them"
