"""Whole conversations to learn: which tokens the assistant wrote, turns that are left out, and ready-made masks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.encoding import EncodedRows, encode_examples, encode_lessons
from lorarl_trainer.data.lessons import Conversation, lesson_of
from lorarl_trainer.data.rows import Row, load_rows
from lorarl_trainer.data.tokenizer import stop_token_ids
from lorarl_trainer.errors import InputError
from support.tiny_tokenizers import CHATML

FIELD = "spec.data.train"
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}"
    "{{ '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LAST_THINKS = CHATML.replace(
    "{{ m.content }}", "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}{{ m.content }}"
)
"""As Qwen3 does it: only the last turn of a conversation has thoughts."""


def said(*turns: str, **last: Any) -> list[dict[str, Any]]:
    """Turns of the user and the assistant; `last` are keys of the last message."""
    messages = [{"role": ("user", "assistant")[index % 2], "content": turn} for index, turn in enumerate(turns)]
    return [*messages[:-1], messages[-1] | last]


def load(folder: Path, *rows: dict[str, Any], **fields: str) -> list[Row]:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = DataSource(uri=f"file:{path}", **fields)
    return load_rows(source, field=FIELD, needs_answer=True, fetch=lambda _: path)


def encode(
    rows: Sequence[Row], tok: Any, prompt: int = 100, response: int = 100, *, template: bool = True
) -> EncodedRows:
    encoder = PromptEncoder(tok, chat_template=template, stop_ids=stop_token_ids(tok, {}))
    return encode_lessons(rows, encoder, max_prompt_tokens=prompt, max_response_tokens=response, field=FIELD)


def learned(rows: Sequence[Row], tok: Any) -> list[str]:
    """Return the texts that are learned, one for each stretch of tokens."""
    stretches: list[list[int]] = []
    for row in encode(rows, tok).rows:
        stretches.append([])
        for token, one in zip(row.answer_ids, row.trained or [True] * len(row.answer_ids), strict=True):
            stretches[-1].append(token) if one else stretches.append([])
    return [tok.decode(stretch) for stretch in stretches if stretch]


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["prefixes", "marked"])
def test_every_turn_of_the_assistant_is_learned_with_its_end(tmp_path: Path, tokenizer, template: str) -> None:
    rows = load(tmp_path, {"chat": said("1+1", "2", "and 1", "3")}, messagesField="chat")
    tok = tokenizer(template)
    assert learned(rows, tok) == ["2<|im_end|>", "3<|im_end|>"]
    (row,) = encode(rows, tok).rows
    assert tok.decode(row.prompt_ids) == "<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n"
    assert tok.decode([*row.prompt_ids, *row.answer_ids]) + "\n" == tok.apply_chat_template(
        said("1+1", "2", "and 1", "3"), tokenize=False
    ), "the template's own text, up to the last turn's end"


@pytest.mark.parametrize("key", [{"weight": 0}, {"weight": 0.0}, {"train": False}, {"train": 0}, {"train": 0.0}])
@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["prefixes", "marked"])
def test_a_turn_may_be_left_out(tmp_path: Path, tokenizer, template: str, key: dict[str, Any]) -> None:
    chat = [*said("1+1", "3", **key), *said("no", "2", "and 1", "3", weight=1)]
    tok = tokenizer(template)
    assert learned(load(tmp_path, {"chat": chat}, messagesField="chat"), tok) == ["2<|im_end|>", "3<|im_end|>"]
    chat = [*said("1+1", "2"), *said("and 1", "3", **key), *said("thanks")]
    assert learned(load(tmp_path, {"chat": chat}, messagesField="chat"), tok) == ["2<|im_end|>"]


@pytest.mark.parametrize(("no", "yes"), [(0, 1), (0.0, 1.0), (False, True), (np.bool_(False), np.bool_(True))])
@pytest.mark.parametrize("key", ["weight", "train"])
def test_a_table_may_write_truth_as_a_number(key: str, no: Any, yes: Any) -> None:
    chat = [*said("1+1", "3", **{key: no}), *said("no", "2", **{key: yes}), *said("and 1", "3", **{key: None})]
    lesson = lesson_of({"chat": chat}, DataSource(uri="file:rows.parquet", messagesField="chat"), FIELD, "row 1")
    assert isinstance(lesson, Conversation) and lesson.trained == [False, True, True]


def test_one_turn_is_the_same_as_a_prompt_with_its_answer(tmp_path: Path, tokenizer) -> None:
    tok = tokenizer(LAST_THINKS)
    (whole,) = encode(load(tmp_path, {"chat": said("1+1", "2")}, messagesField="chat"), tok).rows
    encoder = PromptEncoder(tok, chat_template=True, stop_ids=stop_token_ids(tok, {}))
    rows = load(tmp_path, {"prompt": "1+1", "answer": "2"})
    (plain,) = encode_examples(rows, encoder, max_prompt_tokens=99, max_response_tokens=99, field=FIELD).rows
    assert (whole.prompt_ids, whole.answer_ids, whole.trained) == (plain.prompt_ids, plain.answer_ids, None)


def test_a_turn_that_is_written_otherwise_later_is_its_own_row(tmp_path: Path, tokenizer) -> None:
    rows, tok = load(tmp_path, {"chat": said("1+1", "2", "and 1", "3")}, messagesField="chat"), tokenizer(LAST_THINKS)
    assert learned(rows, tok) == ["<think></think>2<|im_end|>", "<think></think>3<|im_end|>"]
    found = encode(rows, tok)
    assert found.split == 1 and [row.row.number for row in found.rows] == [1, 1]
    assert "think" not in tok.decode(found.rows[1].prompt_ids), "the history as the template writes it"


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["prefixes", "marked"])
def test_turns_may_begin_with_a_line_break_that_merges_with_the_templates(
    tmp_path: Path, tokenizer, template: str
) -> None:
    tok, chat = tokenizer(template), said("1+1", "\n2", "and 1", "3", "and 2", "\n5")
    rows = load(tmp_path, {"chat": chat}, messagesField="chat")
    (row,) = encode(rows, tok).rows
    assert tok.decode([*row.prompt_ids, *row.answer_ids]) + "\n" == tok.apply_chat_template(chat, tokenize=False)
    if template == CHATML:
        assert learned(rows, tok) == ["\n2<|im_end|>", "3<|im_end|>", "\n5<|im_end|>"]
        (opened,) = encode(load(tmp_path, {"chat": said("1+1", "2")}, messagesField="chat"), tok).rows
        assert row.prompt_ids == opened.prompt_ids, "as in a rollout"


def test_without_stop_tokens_each_turn_gets_one_and_no_white_space(tmp_path: Path, tokenizer) -> None:
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    template = plain + "{% if add_generation_prompt %}assistant: {% endif %}"
    rows = load(tmp_path, {"chat": said("1+1", "2", "and 1", "3")}, messagesField="chat")
    assert learned(rows, tokenizer(template)) == ["2<|im_end|>", "3<|im_end|>"]


UNCLEAR = {
    "an opened turn that is written otherwise": CHATML + "{% if add_generation_prompt %}<think>{% endif %}",
    "marks around some turns": MARKED.replace("m.role == 'assistant'", "m.role == 'assistant' and loop.last"),
}


@pytest.mark.parametrize("template", UNCLEAR.values(), ids=UNCLEAR.keys())
def test_a_template_that_does_not_show_the_turns_is_refused(tmp_path: Path, tokenizer, template: str) -> None:
    rows = load(tmp_path, {"chat": said("1+1", "2", "and 1", "3")}, messagesField="chat")
    with pytest.raises(InputError, match="row 1") as caught:
        encode(rows, tokenizer(template))
    assert caught.value.field == "spec.data.chatTemplate" and "{% generation %}" in caught.value.hint


def test_a_conversation_needs_the_template(tmp_path: Path, tokenizer) -> None:
    rows = load(tmp_path, {"chat": said("1+1", "2")}, messagesField="chat")
    with pytest.raises(InputError, match="row 1 is a conversation"):
        encode(rows, tokenizer(), template=False)


def test_tokens_come_with_their_own_mask(tmp_path: Path, tokenizer) -> None:
    raw = {"ids": [5, 6, 7, 8, 9, 10], "mask": [1, 0, 1, 0, 1, 0]}
    (row,) = encode(load(tmp_path, raw, tokensField="ids", lossMaskField="mask"), tokenizer(), template=False).rows
    assert (row.prompt_ids, row.answer_ids, row.trained) == ([5, 6], [7, 8, 9], [True, False, True])


def test_ids_that_the_model_does_not_have_are_refused(tmp_path: Path, tokenizer) -> None:
    tok = tokenizer()
    rows = load(tmp_path, {"ids": [5, 6, 7], "mask": [0, 1, 1]}, {"ids": [5, len(tok)], "mask": [0, 1]}, **TOKENS)
    encoder = PromptEncoder(tok, chat_template=False, stop_ids=stop_token_ids(tok, {}), vocabulary_size=len(tok))
    with pytest.raises(InputError, match=f"token {len(tok)} in row 2, expected ids below") as caught:
        encode_lessons(rows, encoder, max_prompt_tokens=9, max_response_tokens=9, field=FIELD)
    assert caught.value.field == f"{FIELD}.tokensField"


def test_what_is_longer_than_both_limits_together_is_left_out(tmp_path: Path, tokenizer) -> None:
    rows = load(
        tmp_path,
        {"ids": list(range(5, 15)), "mask": [0, *[1] * 9]},
        {"ids": list(range(5, 16)), "mask": [0, *[1] * 10]},
        tokensField="ids",
        lossMaskField="mask",
    )
    found = encode(rows, tokenizer(), 4, 6)
    assert ([row.row.number for row in found.rows], found.long_conversations) == ([1], 1)
    with pytest.raises(InputError, match=r"every conversation of spec\.data\.train has more tokens") as caught:
        encode(rows, tokenizer(), 1, 2)
    assert caught.value.hint == "Set spec.rollout.maxResponseTokens to 10 to keep all rows."


TOKENS = {"tokensField": "ids", "lossMaskField": "mask"}
REFUSED = {
    "no messages": ({"chat": []}, {}, "messagesField", r"\[\] in row 1"),
    "no column": ({"messages": said("a", "b")}, {}, "messagesField", "chat, which row 1"),
    "a text": ({"chat": "hello"}, {}, "messagesField", "'hello' in row 1"),
    "the assistant first": ({"chat": said("a", "b")[1:]}, {}, "messagesField", "begins with the assistant"),
    "nothing to learn": ({"chat": said("a", "b", weight=0)}, {}, "messagesField", "no turn to learn"),
    "half a turn": ({"chat": said("a", "b", weight=0.5)}, {}, "messagesField", "a message with weight: 0.5"),
    "two": ({"chat": said("a", "b", train=2)}, {}, "messagesField", "a message with train: 2 in row 1"),
    "a digit": ({"chat": said("a", "b", train="0")}, {}, "messagesField", "a message with train: '0' in row 1"),
    "a word": ({"chat": said("a", "b", train="no")}, {}, "messagesField", "a message with train: 'no'"),
    "one token": ({"ids": [5], "mask": [1]}, TOKENS, "tokensField", r"\[5\] in row 1"),
    "texts": ({"ids": ["a", "b"], "mask": [1, 1]}, TOKENS, "tokensField", "in row 1"),
    "another length": ({"ids": [5, 6], "mask": [1]}, TOKENS, "lossMaskField", "a list of 1 for 2 tokens"),
    "half a token": ({"ids": [5, 6], "mask": [0, 0.5]}, TOKENS, "lossMaskField", r"\[0, 0.5\] in row 1"),
    "an empty mask": ({"ids": [5, 6], "mask": [1, 0]}, TOKENS, "lossMaskField", "no token to learn"),
}


@pytest.mark.parametrize(("raw", "fields", "field", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_learned_is_refused(
    tmp_path: Path, raw: dict[str, Any], fields: dict[str, str], field: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path, raw, **(fields or {"messagesField": "chat"}))
    assert caught.value.field == f"{FIELD}.{field}"
