"""What tools return is written as the family's template writes it, after what the model sampled."""

from __future__ import annotations

from pathlib import Path

import pytest

from lorarl_trainer.data.bridge import Bridge
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.errors import InputError
from support.tiny_tokenizers import CHATML, SPECIAL, TOOLS_CHATML, write_tokenizer
from unit.trainer.data.test_tool_calls import TOOLS
from unit.trainer.data.test_what_is_learned import FOREIGN, OPEN

GLM = (
    "{% if tools %}<|start|>system\n# Tools\n<arg_key>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "{% endif %}{% for m in messages %}{% if m.role == 'user' %}<|User|>\n{{ m.content }}{% elif m.role == 'assistant' "
    "%}<|Assistant|>\n<think></think>{% if m.content %}\n{{ m.content }}{% endif %}{% elif m.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}<|end|>{% endif %}{{ '\n<tool_response>\n' }}{{ m.content }}\n"
    "</tool_response>{% endif %}{% endfor %}" + OPEN + "<|Assistant|>{% endif %}"
)
LLAMA31 = (
    "<s>{% if tools %}<|head|>system<|head|>{{ tools | tojson }}<|python_tag|><|eot|>{% endif %}{% for m in messages %}"
    "{% if m.role == 'tool' %}<|head|>ipython<|head|>\n\n{{ m.content | tojson }}<|eot|>{% elif 'tool_calls' in m %}"
    "<|head|>assistant<|head|>\n\n"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "<|eot|>{% else %}<|head|>{{ m.role }}<|head|>\n\n{{ m.content | trim }}<|eot|>{% endif %}{% endfor %}"
    + OPEN
    + "<|head|>assistant<|head|>\n\n{% endif %}"
)
GEMMA4 = (
    "<s>{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.role != 'tool' %}<start_of_turn>"
    "{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endif %}{% endfor %}"
    + OPEN
    + "<start_of_turn>assistant\n{% endif %}"
)
MISTRAL = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no id') }}{% endif %}{{ m.content }}" + (
    "</s>{% endfor %}{{ tools | tojson }}"
)
ROW = Row("What is it?", None, {}, 1, tools=TOOLS)


def bridge(folder: Path, template: str, stops: tuple[str, ...] = ("<|im_end|>",)) -> Bridge:
    write_tokenizer(folder, template=template, eos=stops[0], special=[*SPECIAL, *FOREIGN, "<|python_tag|>"])
    tokenizer = load_tokenizer(folder)
    encoder = PromptEncoder(tokenizer, chat_template=True, stop_ids=tokenizer.convert_tokens_to_ids(list(stops)))
    return Bridge(encoder)


def told(folder: Path, made: Bridge, *results: str, ended: bool = True) -> str:
    ids = made.results(ROW, [("weather", text) for text in results], ended=ended)
    return str(load_tokenizer(folder).decode(ids))


@pytest.mark.parametrize("ended", [True, False])
def test_results_follow_the_turn_as_hermes_and_qwen_write_them(tmp_path: Path, ended: bool) -> None:
    made = bridge(tmp_path, TOOLS_CHATML)
    made.require(ROW)
    rest = "\n<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n{}\n</tool_response><|im_end|>\n"
    end = "" if ended else "<|im_end|>"
    assert told(tmp_path, made, "3", "{}", ended=ended) == end + rest + "<|im_start|>assistant\n"
    assert made.call(ROW, "weather", {"city": "Bern", "days": 3}) == (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "days": 3}}\n</tool_call>'
    )


def test_results_follow_the_turn_as_glm_and_llama_write_them(tmp_path: Path) -> None:
    glm = bridge(tmp_path / "glm", GLM, ("<|end|>", "<|User|>"))
    glm.require(ROW)
    assert told(tmp_path / "glm", glm, "3") == "\n<tool_response>\n3\n</tool_response><|Assistant|>"
    llama = bridge(tmp_path / "llama", LLAMA31, ("<|eot|>",))
    llama.require(ROW)
    assert told(tmp_path / "llama", llama, "3") == '<|head|>ipython<|head|>\n\n"3"<|eot|><|head|>assistant<|head|>\n\n'
    assert llama.call(ROW, "weather", {"days": 3}) == '{"name": "weather", "parameters": {"days": 3}}'


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (CHATML, "does not show the model its tools"),
        (GEMMA4, "do not keep what tools return"),
        (MISTRAL, "refuses what a tool returns .*no id"),
    ],
)
def test_a_template_that_cannot_is_refused_with_families_that_can(tmp_path: Path, template: str, found: str) -> None:
    with pytest.raises(InputError, match=found) as refused:
        bridge(tmp_path, template).require(ROW)
    assert "as those of Qwen, GLM and Llama 3.1 do" in str(refused.value)


def test_a_result_may_have_the_words_of_the_stand_in(tmp_path: Path) -> None:
    assert "<tool_response>\nlorarl-stand-in\n" in told(tmp_path, bridge(tmp_path, TOOLS_CHATML), "lorarl-stand-in")
