"""Preference pairs as they are found in data sets: as texts, and as chat messages with or without the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.encoding import encode_pairs
from lorarl_trainer.data.rows import Row, load_rows
from lorarl_trainer.data.tokenizer import stop_token_ids
from lorarl_trainer.errors import InputError

FIELD = "spec.data.train"
USER = {"role": "user", "content": "2+2"}
RIGHT, WRONG = ({"role": "assistant", "content": text} for text in ("4", "5"))


def load(folder: Path, *rows: dict[str, Any], suffix: str = "jsonl", **fields: str) -> list[Row]:
    path = folder / f"pairs.{suffix}"
    if suffix == "csv":
        path.write_text("\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]) + "\n")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_rows(
        DataSource(uri=f"file:{path}", **fields), field=FIELD, needs_answer=False, fetch=lambda _: path, pairs=True
    )


FORMS = {
    "texts": {"prompt": "2+2", "chosen": "4", "rejected": "5"},
    "answers as messages": {"prompt": [USER], "chosen": [RIGHT], "rejected": [WRONG]},
    "whole conversations": {"prompt": [USER], "chosen": [USER, RIGHT], "rejected": [USER, WRONG]},
    "a text and conversations": {"prompt": "2+2", "chosen": [USER, RIGHT], "rejected": [USER, WRONG]},
    "no prompt": {"chosen": [USER, RIGHT], "rejected": [USER, WRONG]},
    "other keys": {"prompt": [USER], "chosen": [USER | {"id": 3}, RIGHT], "rejected": [WRONG]},
}


@pytest.mark.parametrize("raw", FORMS.values(), ids=FORMS.keys())
def test_every_usual_form_is_the_same_pair(tmp_path: Path, tokenizer, raw: dict[str, Any]) -> None:
    (row,) = load(tmp_path, raw)
    assert (row.answer, row.rejected) == ("4", "5")
    tok = tokenizer()
    encoder = PromptEncoder(tok, chat_template=True, stop_ids=stop_token_ids(tok, {}))
    (pair,) = encode_pairs([row], encoder, max_prompt_tokens=99, max_response_tokens=9, field=FIELD).rows
    assert tok.decode(pair.prompt_ids) == "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n"
    assert [tok.decode(ids) for ids in (pair.answer_ids, pair.rejected_ids)] == ["4<|im_end|>", "5<|im_end|>"]


@pytest.mark.parametrize("prompt", ["2+2", [{"role": "user", "content": "2+2"}]], ids=["text", "messages"])
def test_a_prompt_may_be_the_last_message_of_what_both_answers_continue(tmp_path: Path, prompt: object) -> None:
    """As in argilla's data: the system message is in the conversations alone."""
    before = [{"role": "system", "content": "Be brief."}, USER]
    (row,) = load(tmp_path, {"prompt": prompt, "chosen": [*before, RIGHT], "rejected": [*before, WRONG]})
    assert (row.prompt, row.answer, row.rejected) == (before, RIGHT["content"], WRONG["content"])


def test_columns_may_have_other_names_and_csv_keeps_numbers_as_they_are(tmp_path: Path) -> None:
    raw = {"question": "7", "good": "007", "bad": "7.0"}
    (row,) = load(tmp_path, raw, suffix="csv", promptField="question", chosenField="good", rejectedField="bad")
    assert (row.prompt, row.answer, row.rejected) == ("7", "007", "7.0")


REFUSED = {
    "no rejected answer": (
        {"prompt": "a", "chosen": "b"},
        "rejectedField",
        "rejected, which row 1 of .* does not have",
    ),
    "an empty cell": ({"prompt": "a", "chosen": None, "rejected": "b"}, "chosenField", "chosen, which is empty"),
    "texts without a prompt": ({"chosen": "a", "rejected": "b"}, "promptField", "prompt, which row 1"),
    "texts that begin with the prompt": (
        {"chosen": "\n\nHuman: hi\n\nAssistant: yes", "rejected": "\n\nHuman: hi\n\nAssistant: no"},
        "promptField",
        "a column with what both answers follow. Move what both texts begin with into a column prompt, in every row",
    ),
    "nothing but the answers": ({"chosen": "a", "rejected": "b"}, "promptField", "Add the column prompt to every row"),
    "conversations that part early": (
        {"chosen": [USER, RIGHT], "rejected": [USER | {"content": "3+3"}, WRONG]},
        "rejectedField",
        "begins otherwise than that of chosen in row 1 .* Cut both",
    ),
    "another conversation than the prompt": (
        {"prompt": "3+3", "chosen": [USER, RIGHT], "rejected": [USER, WRONG]},
        "chosenField",
        "one message of the assistant, alone or after the prompt's",
    ),
    "a message outside of a list": (
        {"prompt": "2+2", "chosen": RIGHT, "rejected": WRONG},
        "chosenField",
        "Put the message into a list",
    ),
    "an answer of the user": ({"prompt": [USER], "chosen": [USER, USER], "rejected": "5"}, "chosenField", "content"),
    "thoughts beside the content": (
        {"prompt": [USER], "chosen": [RIGHT | {"reasoning_content": "hm"}], "rejected": [WRONG]},
        "chosenField",
        "Write reasoning_content into content",
    ),
    "several turns": ({"prompt": [USER], "chosen": [RIGHT], "rejected": [WRONG, USER, WRONG]}, "rejectedField", "5"),
}


@pytest.mark.parametrize(("raw", "field", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_pair_is_refused_by_its_column(tmp_path: Path, raw: dict, field: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path, raw)
    assert caught.value.field == f"{FIELD}.{field}"


def encoded(tokenizer, answers: list[tuple[str, str]], limit: int = 9):
    tok = tokenizer()
    encoder = PromptEncoder(tok, chat_template=True, stop_ids=stop_token_ids(tok, {}))
    rows = [Row("2+2", chosen, {}, number, rejected) for number, (chosen, rejected) in enumerate(answers, 1)]
    return encode_pairs(rows, encoder, max_prompt_tokens=99, max_response_tokens=limit, field=FIELD)


def test_a_pair_is_left_out_if_an_answer_is_long_or_both_are_the_same(tokenizer) -> None:
    found = encoded(tokenizer, [("4", "5"), ("44444", "5"), ("4", "55555"), ("4", "4")], limit=4)
    assert [row.row.number for row in found.rows] == [1]
    assert (found.long_prompts, found.long_answers, found.same_answers) == (0, 2, 1)


def test_pairs_without_any_difference_are_an_error(tokenizer) -> None:
    with pytest.raises(InputError, match="both answers have the same tokens") as caught:
        encoded(tokenizer, [("4", "4"), ("5", "5")])
    assert "chosenField" in caught.value.hint
