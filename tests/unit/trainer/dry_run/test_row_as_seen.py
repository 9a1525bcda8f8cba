"""A dry run shows all of the first row: each turn, what a tool gave, and which lines are learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.data.encoding import EncodedRow, encode_lessons
from lorarl_trainer.data.rows import Row
from lorarl_trainer.dry_run.dry_run import data_lines
from lorarl_trainer.dry_run.row_as_seen import MOST_TOKENS, row_lines
from lorarl_trainer.launch.inputs import EncodedData, Vocabulary
from unit.contract.manifests import manifest
from unit.trainer.data.test_called import ALL, call, chat, encoder, rows_of


def decode(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def seen(prompt: str, answer: str = "", trained: list[bool] | None = None) -> EncodedRow:
    return EncodedRow(Row("", None, {}, 7), [*map(ord, prompt)], [*map(ord, answer)], trained=trained)


def shown(folder: Path, chat_template: str, messages: list[dict[str, Any]]) -> list[str]:
    tok, own = encoder(folder, chat_template)
    rows = rows_of(folder / "rows.jsonl", messages, messages_field="messages")
    limits = {"max_prompt_tokens": 9999, "max_response_tokens": 9999}
    data = EncodedData(encode_lessons(rows, own, **limits, field="spec.data.train").rows, [], {}, [], {})
    return data_lines(LoRARLJob.model_validate(manifest({})), data, Vocabulary(tok, (3,)))


def test_each_turn_of_a_conversation_is_shown_with_what_is_learned(tmp_path: Path) -> None:
    lines = shown(tmp_path, ALL["hermes"], chat(call({"city": "Rome"})))
    start = next(place for place, line in enumerate(lines) if line.startswith("row 1 as the model sees it"))
    assert lines[start].endswith("special tokens included; it learns the lines with >:")
    assert lines[start + 1 :] == [
        "  | <|im_start|>user",
        "  | Weather?<|im_end|>",
        "  | <|im_start|>assistant",
        "  > <tool_call>",
        '  > {"name": "weather", "arguments": {"city": "Rome"}}',
        "  > </tool_call><|im_end|>",
        "  | ",
        "  | <|im_start|>tool",
        "  | sun<|im_end|>",
        "  | <|im_start|>assistant",
        "  > Sun.<|im_end|>",
    ]


def test_a_conversation_of_several_rows_is_shown_in_parts(tmp_path: Path) -> None:
    """As Qwen3's template makes them, which drops earlier thoughts."""
    last = "{% if loop.last and m.role == 'assistant' %}<think>{{ m.content }}</think>{% endif %}"
    lines = shown(tmp_path, ALL["hermes"].replace("{{ m.content }}", "{{ m.content }}" + last), chat(call({})))
    parts = [line for line in lines if "as the model sees it" in line]
    assert [part[:15] for part in parts] == ["row 1, part 1 o", "row 1, part 2 o"]
    assert "  > Sun.<think>Sun.</think><|im_end|>" in lines


@pytest.mark.parametrize("trained", [None, [True, False, True]])
def test_answers_and_masks_are_marked(trained: list[bool] | None) -> None:
    [heading, *lines] = row_lines([seen("ab\nc", "xyz", trained)], decode, ", bare")
    assert heading == "row 7 as the model sees it, special tokens included, bare; it learns the lines with >:"
    assert lines == ["  | ab", "  | c", *(["  > xyz"] if trained is None else ["  > x", "  | y", "  > z"])]


def test_a_prompt_alone_has_nothing_that_is_learned() -> None:
    assert list(row_lines([seen("ab")], decode)) == [
        "row 7 as the model sees it, special tokens included:",
        "  | ab",
    ]


def test_a_space_at_the_start_of_an_answer_is_shown() -> None:
    """Tokenizers of Llama 2 decode a text alone without it."""
    lines = list(row_lines([seen("a", " b")], lambda ids: decode(ids).lstrip()))
    assert lines[1:] == ["  | a", "  >  b"]


@pytest.mark.parametrize("more", [0, 1, 1234])
def test_of_a_long_row_the_middle_is_counted_and_left_out(more: int) -> None:
    row = seen("p" * (MOST_TOKENS - 10), "a" * (10 + more))
    [_, *lines] = row_lines([row], decode)
    if not more:
        assert lines == ["  | " + "p" * (MOST_TOKENS - 10), "  > " + "a" * 10]
        return
    half = MOST_TOKENS // 2
    learned = min(half, 10 + more)
    tail = ["  | " + "p" * (half - learned)] * (half > learned) + ["  > " + "a" * learned]
    assert lines == ["  | " + "p" * half, f"  ... {more:,} tokens are left out here ...", *tail]
