"""The models of `make bench-gpu`, with their configurations but small."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lorarl_trainer.models.model_sizes import shape_of, sizes_of
from lorarl_trainer.storage.downloads import read_model_config
from side_by_side import prepare
from side_by_side.prepare import make_model
from side_by_side.work import SHAPES


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_a_model_that_lorarl_trains(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": shape.head_dim and 16}
    if shape.num_experts:
        heads |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    if shape.model_type == "gemma4_text":
        heads["more"] = {"layer_types": ["full_attention"], "global_head_dim": 32, "hidden_size_per_layer_input": 8}
        heads["more"] |= {"vocab_size_per_layer_input": 512, "num_kv_shared_layers": 0}
    small = replace(shape, hidden_size=32, intermediate_size=64, num_hidden_layers=1, vocab_size=512, **heads)
    make_model(small, tmp_path, "cpu")
    found = shape_of(read_model_config(tmp_path))
    assert found.megatron == (shape.model_type in ("qwen2", "qwen3_moe", "llama"))
    assert found.head == small.head == 16
    digits = AutoTokenizer.from_pretrained(tmp_path)("0123456789", add_special_tokens=False)["input_ids"]
    assert len(digits) == 10, "a prompt of 64 digits must have 64 tokens"


def test_answers_of_a_ragged_shape_end_with_a_constant_chance(tmp_path: Path) -> None:
    shape = SHAPES["7b-ragged"]
    small = replace(shape, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
    make_model(small, tmp_path, "cpu")
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = torch.randint(3, shape.vocab_size, (1, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        chances = model(tokens).logits.float().softmax(-1)[0, :, model.config.eos_token_id]
    mean = shape.vocab_size * math.exp(0.02**2 * shape.hidden_size / 2)
    assert 640 < mean < 660
    assert float(chances.mean()) == pytest.approx(1 / mean, rel=0.1)
    assert float(chances.std() / chances.mean()) < 0.2


@pytest.mark.parametrize("name", ["70b", "a22b"])
def test_a_model_written_by_layers_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    if SHAPES[name].num_experts:
        heads |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "vocab_size": 512}
    small = replace(SHAPES[name], **sizes, **heads)
    make_model(small, tmp_path / "at-once", "cpu")
    monkeypatch.setattr(prepare, "BY_LAYERS", 0)
    make_model(small, tmp_path / "by-layers", "cpu")
    whole, told = AutoModelForCausalLM.from_pretrained(tmp_path / "by-layers", output_loading_info=True)
    assert not any(told.values()), told
    expected = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "at-once").named_parameters())
    found = dict(whole.named_parameters())
    assert found.keys() == expected.keys()
    for parameter, tensor in found.items():
        assert tensor.shape == expected[parameter].shape
        assert float(tensor.detach().std()) == pytest.approx(float(expected[parameter].detach().std()), abs=0.006)
    matrices = [found[f"model.layers.{layer}.self_attn.q_proj.weight"] for layer in range(3)]
    assert not torch.equal(matrices[0], matrices[1]) and not torch.equal(matrices[1], matrices[2])
    told_by_files = [sizes_of(read_model_config(tmp_path / way)) for way in ("at-once", "by-layers")]
    assert told_by_files[0] == told_by_files[1]
