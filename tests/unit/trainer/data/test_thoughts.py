"""Answers after prompts that open the thoughts of a reasoning model, and conversations without their prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tokenizer import stop_token_ids
from lorarl_trainer.errors import InputError
from support.tiny_tokenizers import CHATML

OPENS_THINKING = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
"""As reasoning templates do: the prompt opens the thoughts."""
WRITES_THINKING = OPENS_THINKING.replace(
    "{{ m.content }}", "{{ '<think>\n\n</think>\n\n' if m.role == 'assistant' }}{{ m.content }}"
)
"""As Qwen3-Thinking does: a plain answer follows an empty thought, whose two line breaks are one token."""


def encoder(tokenizer: Any) -> PromptEncoder:
    return PromptEncoder(tokenizer, chat_template=True, stop_ids=stop_token_ids(tokenizer, {}))


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages | length }}" + CHATML,  # another text before the prompt
        OPENS_THINKING,  # the thoughts of the conversation are not written, as by DeepSeek-R1
    ],
)
def test_a_conversation_that_does_not_begin_with_its_prompt_is_refused(
    tokenizer: Callable[..., Any], template: str
) -> None:
    with pytest.raises(InputError, match="conversation of row 3 does not begin with its prompt") as caught:
        encoder(tokenizer(template)).encode_example(Row("2+2", "4", {}, 3))
    assert caught.value.hint.endswith("or give token ids with a loss mask (tokensField, lossMaskField).")
    with pytest.raises(InputError) as caught:
        encoder(tokenizer(template)).encode_pair(Row("2+2", "4", {}, 3, rejected="5"))
    assert "tokensField" not in caught.value.hint, "pairs have none"


def test_an_answer_follows_a_prompt_that_opens_its_thoughts(tokenizer: Callable[..., Any]) -> None:
    """The prompt's line break and the next one are one token in the conversation; in a rollout they cannot be."""
    tok = tokenizer(WRITES_THINKING)
    prompt_ids, answer_ids = encoder(tok).encode_example(Row("2+2", "4", {}, 1))
    assert encoder(tok).encode_prompts([Row("2+2", "4", {}, 1)]) == [prompt_ids]
    assert tok.decode(prompt_ids).endswith("<|im_start|>assistant\n<think>\n")
    assert tok.decode(answer_ids) == "\n</think>\n\n4<|im_end|>"
    assert tok.convert_ids_to_tokens(answer_ids)[0] == "\n"
    pair = encoder(tok).encode_pair(Row("2+2", "4", {}, 1, rejected="5"))
    assert pair[:2] == (prompt_ids, answer_ids)
    assert tok.decode(pair[2]) == "\n</think>\n\n5<|im_end|>"
