"""The models of `make bench-gpu`, with their configurations but small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from lorarl_trainer.planning.model_sizes import read_model_shape
from side_by_side.prepare import make_model
from side_by_side.work import SHAPES


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_a_model_that_lorarl_trains(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": shape.head_dim and 16}
    small = replace(shape, hidden_size=32, intermediate_size=64, num_hidden_layers=1, vocab_size=512, **heads)
    make_model(small, tmp_path, "cpu")
    found = read_model_shape(tmp_path)
    assert found.megatron == (shape.model_type == "qwen2")
    assert found.head == small.head == 16
    digits = AutoTokenizer.from_pretrained(tmp_path)("0123456789", add_special_tokens=False)["input_ids"]
    assert len(digits) == 10, "a prompt of 64 digits must have 64 tokens"
