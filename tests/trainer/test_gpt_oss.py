"""gpt-oss: attention with sinks, experts that stay as they are, and files whose experts are packed in MXFP4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from lorarl_trainer.backends.fsdp.loading import load_base
from lorarl_trainer.errors import LorarlError, PolicyDriftError
from lorarl_trainer.models.model_sizes import read_model_sizes
from lorarl_trainer.storage.downloads import read_model_config
from lorarl_trainer.trained_adapters import merge as merging
from lorarl_trainer.trained_adapters.merge import merge
from lorarl_trainer.trained_adapters.model import Decoding, load_adapted
from lorarl_trainer.trained_adapters.source import find_adapter
from support import tiny_models
from support.in_process import Colocated, prompts, samples_of, worst
from support.packed_models import pack
from support.silent_faults import SLOW, engine_ignores, train_with
from support.tiny_tokenizers import write_tokenizer
from support.transformers_side import hf_logprobs, peft_model, peft_model_without_warnings, plain_model
from trainer.test_parity import TOLERANCE

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_packed_experts_are_read_once_and_used_by_both_sides(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """The published adapter, which vLLM's own loader reads here, is of attention alone."""
    packed, plain = pack(model_folder("gpt_oss"), tmp_path / "models")
    worker = Colocated(packed, tmp_path, rollout__adapterSync="disk")
    try:
        worker.randomise()
        worker.sync()
        samples = samples_of(prompts(), rollouts := worker.generate(prompts()))
        model = peft_model_without_warnings(plain, worker.write_peft(tmp_path / "adapter"))
        adapted = {name.split(".")[-3] for name, _ in model.named_modules() if name.endswith(".lora_A.default")}
        assert adapted == ATTENTION
        peft = hf_logprobs(model, samples)
        assert worst(worker.trainer_logprobs(samples), peft) < TOLERANCE
        assert worst([c.logprobs for c in rollouts], peft) < TOLERANCE
        assert worst(hf_logprobs(plain_model(plain), samples), peft) > 0.01
        base = worker.rollouts.base
        assert base.copied_bytes == 0 and base.shared_bytes == sum(
            parameter.nbytes for _, parameter in worker.worker.backend.model.base_parameters()
        )
    finally:
        worker.close()


def test_packed_experts_are_those_of_transformers(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    packed, plain = pack(model_folder("gpt_oss"), tmp_path)
    files, read = (
        load_file(packed / "model.safetensors"),
        dict(load_base(packed, torch.bfloat16, packed=True).named_parameters()),
    )
    named = [name.removesuffix("_blocks") for name in files if name.endswith("_blocks")]
    assert len(named) == 2 * 2
    for name in named:
        theirs = convert_moe_packed_tensors(files[f"{name}_blocks"], files[f"{name}_scales"])
        assert torch.equal(read[name], theirs)
        assert torch.equal(load_file(plain / "model.safetensors")[name], theirs), "by the format's definition"
    assert read_model_sizes(packed).shapes == read_model_sizes(plain).shapes


@pytest.mark.parametrize("layer", ["qkv_proj", "o_proj"])
def test_attention_that_ignores_the_adapter_is_named(colocated, layer: str) -> None:
    worker: Colocated = colocated("gpt_oss", trainer__backend=None, **SLOW)
    named = "q_proj" if layer == "qkv_proj" else layer
    with pytest.raises(PolicyDriftError, match=rf"do not apply the same adapter.* They differ in .*{named}"):
        train_with(worker, lambda started: engine_ignores(started, layer), 0, [])


def test_an_adapter_on_packed_files_is_merged_and_asked(tmp_path: Path) -> None:
    """The merged model has its experts as they are read. PEFT's own all-linear is attention here."""
    packed, plain = pack(tiny_models.save("gpt_oss-words", tmp_path / "base"), tmp_path / "models")
    adapter = _adapter(packed, plain, tmp_path / "adapter")
    source = find_adapter(str(adapter), None, (), str(packed))
    asked = load_adapted(source)
    assert asked.generate([asked.tokenizer("say a")["input_ids"]], Decoding(1, 4, None))[0][0].tokens == 4
    merge(source, tmp_path / "merged")
    assert read_model_sizes(tmp_path / "merged").shapes == read_model_sizes(plain).shapes
    assert "quantization_config" not in read_model_config(tmp_path / "merged")
    merged, ids = plain_model(tmp_path / "merged"), torch.arange(4, 40)[None]
    with torch.no_grad():
        expected, unadapted = (
            model(input_ids=ids).logits for model in (peft_model(plain, adapter), plain_model(plain))
        )
        assert torch.allclose(merged(input_ids=ids).logits, expected, atol=1e-4)
    assert not torch.allclose(unadapted, expected, atol=1e-2)


def test_a_merge_that_leaves_weights_out_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Transformers 5.12.1 leaves out all weights that it has read from packed ones."""
    packed, plain = pack(tiny_models.save("gpt_oss-words", tmp_path / "base"), tmp_path / "models")
    adapter = _adapter(packed, plain, tmp_path / "adapter")
    monkeypatch.setattr(merging, "load_adapted", lambda source: replace(load_adapted(source), unpacked=False))
    with pytest.raises(LorarlError, match=r"left weights out .* they have [\d,]+ of [\d,]+ values"):
        merge(find_adapter(str(adapter), None, (), str(packed)), tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def _adapter(packed: Path, plain: Path, folder: Path) -> Path:
    """A random adapter by PEFT, and tokenizers."""
    made = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(plain_model(plain), made).save_pretrained(folder)
    write_tokenizer(packed, template=None)
    return write_tokenizer(folder, template=None)


def test_its_sinks_and_windows_change_what_the_tests_compare(model_folder: Callable[[str], Path]) -> None:
    whole, no_sinks, no_windows = (plain_model(model_folder("gpt_oss")) for _ in range(3))
    no_windows.config.sliding_window = 64
    ids = torch.arange(4, 28)[None]
    with torch.no_grad():
        for layer in no_sinks.model.layers:
            layer.self_attn.sinks.fill_(float("-inf"))
        expected, *others = (model(input_ids=ids).logits for model in (whole, no_sinks, no_windows))
    assert all(float((logits - expected).abs().max()) > 0.1 for logits in others)
