"""Tokenizers, made on the spot."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lorarl_trainer.data.tokenizer import load_tokenizer
from support.tiny_tokenizers import CHATML, write_tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> Callable[..., Any]:
    """Writes a tokenizer and loads it as the driver does."""

    def make(template: str | None = CHATML, **options: Any) -> Any:
        return load_tokenizer(write_tokenizer(tmp_path / "model", template=template, **options))

    return make
