"""Calls in templates of Gemma 4's and gpt-oss's form: learned as given, or refused with a way out."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from lorarl_trainer.data.cells import Message
from lorarl_trainer.data.conversations import encode_conversation
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.lessons import Conversation
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.errors import InputError
from support.tiny_tokenizers import write_tokenizer

MARKS = ["<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"]
MARKS += ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"]
GEMMA4 = (
    "{% for m in messages %}{% if m.role == 'tool' %}response:{{ m.content }}<tool_response|>{% else %}"
    "{% if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}<|turn>{{ m.role }}\n{% endif %}"
    "{% for c in m.tool_calls or [] %}<|tool_call>call:{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "<tool_call|>{% endfor %}{% if m.tool_calls %}<|tool_response>{% else %}{{ m.content }}<turn|>\n{% endif %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}<|turn>assistant\n{% endif %}"
)
"""A result follows within the turn that called, and so does the answer to it."""
HARMONY = (
    "{% set last = messages[-1] %}{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}"
    "{% if m.thinking and (last.role != 'assistant' or last.tool_calls) %}<|start|>assistant<|channel|>analysis"
    "<|message|>{{ m.thinking }}<|end|>{% endif %}{% set c = m.tool_calls[0].function %}<|start|>assistant "
    "to={{ c.name }}<|message|>{{ c.arguments | tojson }}<|call|>"
    "{% elif m.role == 'tool' %}<|start|>tool<|message|>{{ m.content }}<|end|>"
    "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>"
    "{% else %}<|start|>user<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""The thought before a call is written until an answer follows."""
ASKED: Message = {"role": "user", "content": "Q?"}
CALLED: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}],
}
THOUGHT: Message = CALLED | {"thinking": "I look it up."}
TOLD: Message = {"role": "tool", "content": "sunny"}
ANSWERED: Message = {"role": "assistant", "content": "It is sunny."}


def learned(folder: Path, template: str, stops: list[str], messages: list[Message], *trained: bool) -> list[str]:
    """The texts that are learned of a conversation, each lesson's parts joined by a bar."""
    write_tokenizer(folder, template=template, eos=stops[0], special=MARKS)
    tokenizer: Any = load_tokenizer(folder)
    encoder = PromptEncoder(tokenizer, chat_template=True, stop_ids=tokenizer.convert_tokens_to_ids(stops))
    flags = list(trained) or [message["role"] == "assistant" for message in messages if message["role"] == "assistant"]
    row = Row("", None, {}, 1, lesson=Conversation(messages, flags))
    lessons = encode_conversation(row, row.lesson, encoder) if isinstance(row.lesson, Conversation) else []
    found = []
    for lesson in lessons:
        runs = groupby(zip(lesson.ids, lesson.trained, strict=True), key=lambda pair: pair[1])
        found.append("|".join(tokenizer.decode([one for one, _ in run]) for is_trained, run in runs if is_trained))
    return found


def test_the_mark_of_a_result_is_refused_unless_turns_end_there(tmp_path: Path) -> None:
    """Both the mark and a stop token after it were learned, which no context has."""
    row = [ASKED, CALLED, TOLD, ANSWERED]
    for name, messages in (("answered", row), ("called", row[:2])):
        with pytest.raises(InputError, match=r"ends a turn with calls by <\|tool_response> in row 1") as refused:
            learned(tmp_path / name, GEMMA4, ["<turn|>"], messages)
        assert "Add the id of <|tool_response> to eos_token_id in the model's generation" in str(refused.value)
    call = '<|tool_call>call:weather{"city": "Rome"}<tool_call|><|tool_response>'
    assert learned(tmp_path / "ended", GEMMA4, ["<turn|>", "<|tool_response>"], row) == [f"{call}|It is sunny.<turn|>"]


def test_a_thought_beside_a_call_is_learned(tmp_path: Path) -> None:
    (turn,) = learned(tmp_path, HARMONY, ["<|return|>", "<|call|>"], [ASKED, THOUGHT])
    assert turn == (
        "<|channel|>analysis<|message|>I look it up.<|end|><|start|>assistant to=weather<|message|>"
        '{"city": "Rome"}<|call|>'
    )


def test_a_thought_that_an_answer_removes_makes_two_rows(tmp_path: Path) -> None:
    stops = ["<|return|>", "<|call|>"]
    with pytest.raises(InputError, match="leaves out an earlier turn's thought once a later one follows") as refused:
        learned(tmp_path / "one", HARMONY, stops, [ASKED, THOUGHT, TOLD, ANSWERED])
    assert "Make two rows of it: one that ends with the turn that has the thought" in str(refused.value)
    (first,) = learned(tmp_path / "first", HARMONY, stops, [ASKED, THOUGHT])
    (second,) = learned(tmp_path / "second", HARMONY, stops, [ASKED, CALLED, TOLD, ANSWERED], False, True)
    assert "I look it up." in first and second == "<|channel|>final<|message|>It is sunny.<|return|>"
