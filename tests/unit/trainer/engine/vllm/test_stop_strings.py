"""Texts that end a completion, across tokens and beside special tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.engine.vllm.running import Ended, RunningRequests
from lorarl_trainer.engine.vllm.stop_strings import StopStrings
from support.tiny_tokenizers import write_tokenizer


@pytest.fixture
def completed(tmp_path: Path):
    """Feeds a text token by token, and returns what came out with how many of its tokens were asked for."""
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, template=None))

    def feed(text: str, *stop: str) -> tuple[str, bool]:
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        table = RunningRequests(1, len(tokens) + 1)
        table.stop_strings = StopStrings(tokenizer, stop) if stop else None
        table.start(table.admit("a", 1, len(tokens), ()), 1, 16)
        ended: list[Ended] = []
        for token in tokens:
            if ended := table.receive(["a"], np.array([token]), None):
                break
        (one,) = ended
        return tokenizer.decode(one.tokens), one.stopped

    return feed


def test_a_completion_ends_with_the_token_that_completes_a_text(completed) -> None:
    assert completed("so <b>4</b> and more", "never", "</b>") == ("so <b>4</b>", True)
    assert completed("a\nQ: b", "\nQ:") == ("a\nQ:", True)


def test_a_text_of_many_tokens_after_many_others_is_found(completed) -> None:
    assert completed("x" * 300 + "the end of it all.", "the end of it") == ("x" * 300 + "the end of it", True)


def test_a_special_token_counts_as_its_text(completed) -> None:
    text, stopped = completed("ab<|im_start|>cd", "<|im_start|>")
    assert (text, stopped) == ("ab<|im_start|>", True)


def test_a_text_that_does_not_come_ends_nothing(completed) -> None:
    assert completed("so <b>4<b>", "</b>") == ("so <b>4<b>", False)
    assert completed("plain") == ("plain", False)
