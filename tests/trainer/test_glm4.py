"""GLM-4.7-Flash: adapters on each part of latent attention reach vLLM, and are merged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from lorarl_trainer.backends.fsdp.adapters import linear_names
from lorarl_trainer.errors import InputError, PolicyDriftError
from lorarl_trainer.models.model_sizes import read_model_sizes
from lorarl_trainer.trained_adapters.merge import merge
from lorarl_trainer.trained_adapters.model import Decoding, load_adapted
from lorarl_trainer.trained_adapters.source import find_adapter
from support import tiny_models
from support.in_process import Colocated
from support.silent_faults import SLOW, engine_ignores, train_with
from support.tiny_tokenizers import write_tokenizer
from support.transformers_side import peft_model, plain_model

ATTENTION = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")


@pytest.mark.long
@pytest.mark.parametrize("layer", ATTENTION)
def test_attention_that_ignores_the_adapter_is_named(colocated, layer: str) -> None:
    """With its own latent attention, vLLM would ignore that of `kv_b_proj` while it decodes."""
    worker: Colocated = colocated("glm4_moe_lite", trainer__backend=None, **SLOW)
    with pytest.raises(PolicyDriftError, match=rf"do not apply the same adapter.* They differ in .*{layer}"):
        train_with(worker, lambda started: engine_ignores(started, layer), 0, [])


def test_layers_that_predict_further_tokens_are_left_out(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Published files have one after the others, with weights of its own kind."""
    folder = shutil.copytree(model_folder("glm4_moe_lite"), tmp_path / "published")
    weights, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    further = {"eh_proj.weight": torch.zeros(128, 256), "self_attn.q_a_proj.weight": torch.zeros(48, 128)}
    weights |= {f"model.layers.2.{name}": weight for name, weight in further.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"weights have model\.layers\.2"):
        read_model_sizes(folder)
    (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    assert read_model_sizes(folder).shapes == read_model_sizes(model_folder("glm4_moe_lite")).shapes


def test_an_adapter_is_merged_and_asked(tmp_path: Path) -> None:
    """PEFT reads an adapter on attention in this family, beside MLPs whose names it takes for those of experts."""
    base = write_tokenizer(tiny_models.save("glm4_moe_lite-words", tmp_path / "base"), template=None)
    layers, adapter = linear_names(plain_model(base)), tmp_path / "adapter"
    assert {name.rpartition(".")[2] for name in layers} == {*ATTENTION}
    made = LoraConfig(r=4, target_modules=layers, init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(plain_model(base), made).save_pretrained(adapter)
    write_tokenizer(adapter, template=None)
    source = find_adapter(str(adapter), None, (), str(base))
    asked = load_adapted(source)
    assert asked.generate([asked.tokenizer("say a")["input_ids"]], Decoding(1, 4, None))[0][0].tokens == 4
    merge(source, tmp_path / "merged")
    merged, ids = plain_model(tmp_path / "merged"), torch.arange(4, 40)[None]
    with torch.no_grad():
        expected, plain = (model(input_ids=ids).logits for model in (peft_model(base, adapter), plain_model(base)))
        assert torch.allclose(merged(input_ids=ids).logits, expected, atol=1e-4)
    assert not torch.allclose(plain, expected, atol=1e-2)
