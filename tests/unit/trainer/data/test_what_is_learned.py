"""What is learned of a conversation is what was given, turn by turn, whatever the family's chat template does.

The templates are in the manner of the families', on one tokenizer with all their special tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.encoding import EncodedRow, encode_lessons
from lorarl_trainer.data.lessons import lesson_of
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.errors import InputError
from support.tiny_tokenizers import CHATML, SPECIAL, write_tokenizer

GPT2_BREAKS = "\n\n(?!\\S)|\n|."
"""GPT-2's pattern parts two line breaks before a letter, and not at the end of a prompt."""
FOREIGN = ["</s>", "<|end|>", "<|endoftext|>", "<|eot|>", "<|eom|>", "<|head|>", "<end_of_turn>", "<start_of_turn>"]
FOREIGN += ["[INST]", "[/INST]", "<|User|>", "<|Assistant|>", "<|start|>", "<|message|>", "<|channel|>", "<|return|>"]
OPEN = "{% if add_generation_prompt %}"


class Family(NamedTuple):
    template: str
    stops: tuple[str, ...]
    keeps_thoughts: bool = True
    splits: str = "\n\n|\n|."


QWEN3 = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% set text = m.content %}{% set thought = '' %}{% if '</think>' in text %}"
    "{% set thought = text.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}<think>\n{{ thought }}\n</think>\n\n{% endif %}{{ text }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}" + OPEN + "<|im_start|>assistant\n{% endif %}"
)
LLAMA31 = (
    "<s>{% for m in messages %}{% if not (m.role == 'tool' or 'tool_calls' in m) %}<|head|>{{ m.role }}<|head|>\n\n"
    "{{ m.content | trim }}<|eot|>{% elif m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}"
    "{% endif %}{% endfor %}" + OPEN + "<|head|>assistant<|head|>\n\n{% endif %}"
)
PHI3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    + OPEN
    + "<|im_start|>assistant\n{% else %}<|endoftext|>{% endif %}"
)
GEMMA = (
    "<s>{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}"
    "<end_of_turn>\n{% endfor %}" + OPEN + "<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    "<s>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]{% else %} {{ m.content | trim }}"
    "</s>{% endif %}{% endfor %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {{ m.content | trim }} [/INST]{% else %}"
    " {{ m.content | trim }} </s>{% endif %}{% endfor %}"
)
DEEPSEEK = (
    "<s>{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}{% else %}"
    "<|Assistant|>{{ m.content.split('</think>')[-1] }}</s>{% endif %}{% endfor %}" + OPEN + "<|Assistant|>{% endif %}"
)
HARMONY = (
    "{% for m in messages %}{% if m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>{% else %}<|start|>"
    "assistant{% if loop.last and m.content.startswith('<think>') %}<|channel|>analysis<|message|>"
    "{{ m.content.split('</think>')[0][7:] }}<|end|><|start|>assistant{% endif %}<|channel|>final<|message|>"
    "{{ m.content.split('</think>')[-1] }}{{ '<|return|>' if loop.last else '<|end|>' }}{% endif %}{% endfor %}"
    + OPEN
    + "<|start|>assistant{% endif %}"
)
FAMILIES = {
    "ChatML": Family(CHATML, ("<|im_end|>",)),
    "Qwen3": Family(QWEN3, ("<|im_end|>", "<|endoftext|>")),
    "Qwen3 that does not think": Family(
        QWEN3.replace("assistant\n{% endif %}", "assistant\n<think>\n\n</think>\n\n{% endif %}"),
        ("<|im_end|>",),
        keeps_thoughts=False,
    ),
    "Llama 3.1": Family(LLAMA31, ("<|eom|>", "<|eot|>")),
    "Llama 3.1 on GPT-2's vocabulary": Family(LLAMA31, ("<|eom|>", "<|eot|>"), splits=GPT2_BREAKS),
    "Phi-3": Family(PHI3, ("<|endoftext|>", "<|end|>")),
    "Gemma": Family(GEMMA, ("<end_of_turn>",)),
    "Mistral": Family(MISTRAL, ("</s>",)),
    "Llama 2": Family(LLAMA2, ("</s>",)),
    "DeepSeek": Family(DEEPSEEK, ("</s>",), keeps_thoughts=False),
    "ChatML with two line breaks": Family(CHATML.replace("\n", "\n\n"), ("<|im_end|>",)),
    "two line breaks on GPT-2's vocabulary": Family(CHATML.replace("\n", "\n\n"), ("<|im_end|>",), splits=GPT2_BREAKS),
    "no stop tokens": Family(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}" + OPEN + "assistant: {% endif %}",
        ("</s>",),
        splits=GPT2_BREAKS,
    ),
    "a stop token at the very end": Family(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        + OPEN
        + "assistant: {% else %}</s>{% endif %}",
        ("</s>",),
    ),
    "marks": Family(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}<|im_end|>\n{% endgeneration %}{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        + OPEN
        + "<|im_start|>assistant\n{% endif %}",
        ("<|im_end|>",),
    ),
    "marks without the stop token": Family(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}",
        ("<|im_end|>",),
    ),
    "marks, and earlier thoughts are dropped": Family(
        QWEN3.replace("{% if loop.index0 > ns.last", "{% generation %}{% if loop.index0 > ns.last").replace(
            "{{ text }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n",
            "{{ text }}<|im_end|>\n{% endgeneration %}{% else %}{{ m.content }}<|im_end|>\n{% endif %}",
        ),
        ("<|im_end|>",),
    ),
    "analysis and final": Family(HARMONY, ("<|return|>",)),
}
TEXTS = st.text(alphabet="ab 1.\n", min_size=1, max_size=8).filter(str.strip)
ANSWERS = st.tuples(st.none() | TEXTS, TEXTS).map(
    lambda two: two[1] if two[0] is None else f"<think>{two[0]}</think>{two[1]}"
)


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda name: name.replace(" ", "-"))
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Family, Any, PromptEncoder]:
    one = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(
        folder, template=one.template, eos=one.stops[0], special=[*SPECIAL, *FOREIGN], splits=one.splits, bos=True
    )
    tok = load_tokenizer(folder)
    return one, tok, PromptEncoder(tok, chat_template=True, stop_ids=tok.convert_tokens_to_ids(list(one.stops)))


def turns_of(lesson: EncodedRow, tok: Any) -> Iterator[tuple[str, str]]:
    """Yield all text before each turn that is learned, and the turn."""
    ids = [*lesson.prompt_ids, *lesson.answer_ids]
    trained = [False] * len(lesson.prompt_ids) + list(lesson.trained or [True] * len(lesson.answer_ids))
    starts = [place for place in range(1, len(ids)) if trained[place] and not trained[place - 1]]
    for start in starts:
        end = next((place for place in range(start, len(ids)) if not trained[place]), len(ids))
        yield tok.decode(ids[:start]), tok.decode(ids[start:end])


def packed(text: str) -> str:
    return "".join(text.split())


@settings(max_examples=40, deadline=None)
@given(turns=st.lists(st.tuples(TEXTS, ANSWERS), min_size=1, max_size=4))
def test_each_turn_is_learned_as_it_is_given_and_after_its_prompt(
    family: tuple[Family, Any, PromptEncoder], turns: list[tuple[str, str]]
) -> None:
    kind, tok, encoder = family
    chat = [
        {"role": role, "content": content}
        for turn in turns
        for role, content in zip(("user", "assistant"), turn, strict=True)
    ]
    source = DataSource(uri="file:rows.jsonl", messagesField="chat")
    lesson = lesson_of({"chat": chat}, source, "spec.data.train", "row 1")
    row = Row(chat, None, {}, 1, lesson=lesson)
    options = {"max_prompt_tokens": 999, "max_response_tokens": 999, "field": "spec.data.train"}
    thinks = any("<think>" in answer for _, answer in turns)
    if thinks and not kind.keeps_thoughts:
        with pytest.raises(InputError, match="row 1"):
            encode_lessons([row], encoder, **options)
        return
    found = [turn for lesson in encode_lessons([row], encoder, **options).rows for turn in turns_of(lesson, tok)]
    assert len(found) == len(turns)
    for number, ((before, learned), (_, answer)) in enumerate(zip(found, turns, strict=True)):
        assert learned.endswith(kind.stops) and not learned.startswith(kind.stops)
        said = packed(learned).replace("<|channel|>analysis<|message|>", "<think>")
        said = said.replace("<|end|><|start|>assistant", "</think>").replace("<|channel|>final<|message|>", "")
        plain = said.removesuffix(next(stop for stop in kind.stops if said.endswith(stop)))
        assert plain.removeprefix("<think></think>" * ("<think>" not in answer)) == packed(answer)
        opened = encoder.render(row, chat[: 2 * number + 1], open_turn=True)
        assert before == opened or ("{% generation %}" in kind.template and packed(before).startswith(packed(opened)))


def test_a_turn_ends_at_the_first_stop_token_after_its_message(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path, template=PHI3, eos="<|endoftext|>", special=[*SPECIAL, *FOREIGN])
    tok = load_tokenizer(folder)
    encoder = PromptEncoder(tok, chat_template=True, stop_ids=tok.convert_tokens_to_ids(["<|end|>", "<|endoftext|>"]))
    for answer, learned in {
        "Yes.": "Yes.<|end|>",
        "say <|end|> twice": "say <|end|> twice<|end|>",
        "Yes.<|end|>": "Yes.<|end|>",
        "Yes.<|endoftext|>\n": "Yes.<|endoftext|>",
    }.items():
        assert tok.decode(encoder.encode_example(Row("q", answer, {}, 1))[1]) == learned


def test_a_template_that_drops_what_a_message_says_is_refused(tmp_path: Path) -> None:
    tok = load_tokenizer(write_tokenizer(tmp_path, template=DEEPSEEK, eos="</s>", special=[*SPECIAL, *FOREIGN]))
    encoder = PromptEncoder(tok, chat_template=True, stop_ids=[tok.eos_token_id])
    with pytest.raises(InputError, match="drops some of the content of the assistant in row 4, '<think>1</think>2'"):
        encoder.encode_example(Row("q", "<think>1</think>2", {}, 4))
    with pytest.raises(InputError, match="drops some of the reasoning_content of the assistant in row 4, 'hm'"):
        encoder.turn(
            Row("q", None, {}, 4),
            [{"role": "user", "content": "q"}],
            {"role": "assistant", "content": "2", "reasoning_content": "hm"},
        )
