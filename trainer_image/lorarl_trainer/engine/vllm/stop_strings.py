"""Texts that end a completion, wherever the tokens' borders are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.samples.arrays import Ints

_MORE_TOKENS = 4
"""Decoding may change the start of a text that begins within a word or a character."""


class StopStrings:
    """Finds out after each token whether a completion has come to one of the texts.

    Attributes:
        window: how many of a completion's last tokens have to be looked at. A token has at least one byte.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        """`tokenizer` is one of Transformers. Special tokens count as the text that they are written as."""
        self._tokenizer, self._strings = tokenizer, tuple(strings)
        self.window = max(len(text.encode()) for text in strings) + _MORE_TOKENS

    @classmethod
    def of_model(cls, folder: Path, strings: Sequence[str]) -> StopStrings | None:
        """Return the texts for a model's tokenizer; None if there are none."""
        return cls(load_tokenizer(folder), strings) if strings else None

    def found(self, tails: Sequence[Ints]) -> list[bool]:
        """Return whether each completion, of which the last `window` tokens are given, contains one of the texts."""
        texts = self._tokenizer.batch_decode(list(tails), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return [any(text in decoded for text in self._strings) for decoded in texts]
