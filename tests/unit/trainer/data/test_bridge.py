"""Between two turns of the model comes what the chat template writes there, and what the model made stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from lorarl_trainer.data.bridge import Bridge
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.errors import InputError
from support.tiny_tokenizers import CHATML, SPECIAL, write_tokenizer
from unit.trainer.data.test_what_is_learned import FAMILIES, FOREIGN

ROW = EncodedRow(Row("What is it?", None, {}, 1), [], [])
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)
SYSTEM_LAST = (
    "{% for m in messages if m.role != 'system' %}{% if loop.last %}{{ messages[0].content }} {% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
SPACED = "{% for m in messages %}{{ m.content }} <|im_end|><|im_start|>{% endfor %}"
COUNTED = "{% for m in messages %}{{ loop.revindex }}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
NO_DEVELOPER = (
    "{% for m in messages if m.role in ['system', 'user', 'assistant'] %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As Qwen's: a role that it does not know is left out."""
ONE_TURN = (
    "{% if messages|length > 2 %}{{ raise_exception('one turn only') }}{% endif %}"
    "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
)


def bridge(folder: Path, template: str | None) -> Bridge:
    tokenizer = load_tokenizer(write_tokenizer(folder, template=template))
    return Bridge(PromptEncoder(tokenizer, chat_template=template is not None, stop_ids=[3], vocabulary_size=128))


def written(folder: Path, template: str | None, *, ended: bool, text: str = "No. Again?") -> str:
    made = bridge(folder, template)
    tokenizer = load_tokenizer(folder)
    opened = made.opened(ROW, "What is it?")
    text = tokenizer.decode(made.tokens(opened.row, text, ended=ended))
    return str(text)


@pytest.mark.parametrize("ended", [True, False])
def test_the_bridge_is_what_the_template_writes_after_the_stop_token(tmp_path: Path, ended: bool) -> None:
    rest = "\n<|im_start|>user\nNo. Again?<|im_end|>\n<|im_start|>assistant\n"
    assert written(tmp_path, CHATML, ended=ended) == ("" if ended else "<|im_end|>") + rest
    assert written(tmp_path / "spaced", SPACED, ended=ended).endswith("<|im_start|>No. Again? <|im_end|><|im_start|>")


def test_the_next_turn_is_opened_as_the_first_one_was(tmp_path: Path) -> None:
    assert written(tmp_path, THINKING, ended=True).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_without_a_template_a_text_follows_as_it_is(tmp_path: Path) -> None:
    assert written(tmp_path, None, ended=True) == "No. Again?"


def test_a_text_may_hold_the_words_of_the_stand_in(tmp_path: Path) -> None:
    assert "<|im_start|>user\nlorarl-stand-in<|im_end|>" in written(
        tmp_path, CHATML, ended=True, text="lorarl-stand-in"
    )


def test_an_episode_is_opened_with_a_text_or_with_messages(tmp_path: Path) -> None:
    made, tokenizer = bridge(tmp_path, CHATML), load_tokenizer(tmp_path)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    opened = made.opened(ROW, messages)
    assert opened.row.prompt == messages
    assert tokenizer.decode(opened.prompt_ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("template", [CHATML, THINKING, SPACED, None])
def test_a_template_that_only_adds_is_taken(tmp_path: Path, template: str | None) -> None:
    bridge(tmp_path, template).require(ROW.row)


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_writes_the_next_turn_after_what_the_model_wrote(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    special = [*SPECIAL, *FOREIGN]
    write_tokenizer(tmp_path, template=family.template, eos=family.stops[0], special=special, splits=family.splits)
    tokenizer = load_tokenizer(tmp_path)
    stops = tokenizer.convert_tokens_to_ids(list(family.stops))
    made = Bridge(PromptEncoder(tokenizer, chat_template=True, stop_ids=stops))
    made.require(ROW.row)
    opened = made.opened(ROW, "What is it?")
    told = tokenizer.decode(made.tokens(opened.row, "No. Again?", ended=True))
    assert told.count("No. Again?") == 1
    assert not told.startswith(family.stops), "the model wrote it"
    # The next turn is opened as the first one was.
    first = tokenizer.decode(opened.prompt_ids).partition("What is it?")[2]
    assert told.partition("No. Again?")[2] == first


@pytest.mark.parametrize(
    ("template", "prompt", "found"),
    [
        (COUNTED, "hello", "changes the beginning of row 1"),
        (SYSTEM_LAST, [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "the beginning of row 1"),
        (ONE_TURN, "hello", "one turn only"),
    ],
)
def test_a_template_that_changes_what_came_before_is_refused(
    tmp_path: Path, template: str, prompt: str | list[dict[str, str]], found: str
) -> None:
    with pytest.raises(InputError, match=found) as refused:
        bridge(tmp_path, template).require(Row(prompt, None, {}, 1))
    assert str(refused.value).startswith("spec.environment: got a model with a chat template")


def test_a_message_that_the_template_leaves_out_is_refused(tmp_path: Path) -> None:
    made, user = bridge(tmp_path, NO_DEVELOPER), {"role": "user", "content": "u"}
    told = {"role": "developer", "content": "Be brief.\n"}
    left_out = "leaves out the message with the role developer.*Give it the role system or user"
    with pytest.raises(InputError, match=left_out):
        made.opened(ROW, [told, user])
    opened = made.opened(ROW, [told | {"role": "system"}, user])
    with pytest.raises(InputError, match=left_out):
        made.messages(opened.row, [user, told], ended=True)
    made.messages(opened.row, [user, told | {"role": "system"}], ended=True)
    bridge(tmp_path / "other", CHATML).opened(ROW, [told, user])
