"""Layers that keep a state: lorarl's rule, and states in vLLM's cache where requests wait, stop and continue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

from lorarl_trainer.backends.fsdp.adapters import linear_names
from lorarl_trainer.backends.fsdp.delta_rule import chunk_gated_delta_rule
from lorarl_trainer.errors import PolicyDriftError
from lorarl_trainer.planning import memory
from lorarl_trainer.trained_adapters.merge import merge
from lorarl_trainer.trained_adapters.model import Decoding, load_adapted
from lorarl_trainer.trained_adapters.source import find_adapter
from support import tiny_models
from support.in_process import Colocated, samples_of, worst
from support.silent_faults import SLOW, engine_ignores, train_with
from support.tiny_tokenizers import write_tokenizer
from support.transformers_side import hf_logprobs, peft_model, plain_model
from trainer.test_scheduler import groups

PAGE = 32 * 2 * 2 * 32 * 4
"""A block: keys and values of 32 tokens, two heads of 32 in fp32. It holds a layer's state of a sequence."""
LONG = 1e-4
"""A state adds up the rounding of all tokens before: over 120, Transformers in fp32 is 2.6e-05 from itself in fp64."""


@pytest.mark.parametrize("length", [1, 64, 150])
def test_the_rule_is_that_of_transformers(length: int) -> None:
    stream = torch.Generator().manual_seed(0)

    def given() -> list[torch.Tensor]:
        query, key = torch.randn(2, 2, length, 4, 16, generator=stream)
        value = torch.randn(2, length, 4, 32, generator=stream)
        left, written = torch.rand(2, 2, length, 4, generator=stream)
        return [query, key, value, -2 * left, written]

    arguments, wanted = given(), torch.randn(2, length, 4, 32, generator=stream)
    found = []
    for rule in (torch_chunk_gated_delta_rule, chunk_gated_delta_rule):
        leaves = [tensor.clone().requires_grad_() for tensor in arguments]
        output: Any = rule(*leaves, use_qk_l2norm_in_kernel=True)[0]
        (output * wanted).sum().backward()
        found.append([output, *(leaf.grad for leaf in leaves)])
    for theirs, ours in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, rtol=0.0, atol=2e-6)


@pytest.mark.parametrize("family", ["qwen3_5", "granitemoehybrid-mamba", pytest.param("lfm2", marks=pytest.mark.long)])
def test_states_are_right_where_requests_are_stopped_and_prompts_split(
    colocated, monkeypatch: pytest.MonkeyPatch, tmp_path, family: str
) -> None:
    """And where a prompt is a single token, which looks like one that decodes."""
    monkeypatch.setattr(memory, "kv_cache_bytes", lambda *_, **__: 24 * PAGE)
    lengths = {"rollout__maxPromptTokens": 80, "rollout__maxResponseTokens": 40}
    worker: Colocated = colocated(family, trainer__backend=None, **lengths)
    worker.randomise()
    worker.sync()
    worker.engine._core.scheduler.max_num_scheduled_tokens = 48
    whole = peft_model(worker.model, worker.write_peft(tmp_path / "adapter"))
    asked = [*groups(4), *([7] for _ in range(4))]
    for _ in range(2):  # the second time, blocks have others' states
        samples = samples_of(asked, rollouts := worker.generate(asked))
        assert worker.engine.occupancy.preemptions
        peft = hf_logprobs(whole, samples)
        assert worst([c.logprobs for c in rollouts], peft) < LONG
        assert worst(worker.trainer_logprobs(samples), peft) < LONG


@pytest.mark.parametrize(
    ("family", "layer", "adapters"),
    [
        ("qwen3_5", "in_proj_ba", "in_proj_a"),
        ("granitemoehybrid-mamba", "mamba.in_proj", "in_proj"),
        pytest.param("granitemoehybrid-mamba", "mamba.out_proj", "out_proj", marks=pytest.mark.long),
        pytest.param("qwen3_5", "in_proj_qkvz", "in_proj_qkv", marks=pytest.mark.long),
        pytest.param("qwen3_5", "out_proj", "out_proj", marks=pytest.mark.long),
        pytest.param("qwen3_5_moe", "gate_up_proj", "gate_proj", marks=pytest.mark.long),
        pytest.param("qwen3_5_moe", "down_proj", "down_proj", marks=pytest.mark.long),
        pytest.param("qwen3_5_moe", "in_proj_ba", "in_proj_a", marks=pytest.mark.long),
        *(
            pytest.param("lfm2", layer, adapters, marks=pytest.mark.long)
            for layer, adapters in (("in_proj", "in_proj"), ("short_conv.out_proj", "out_proj"), ("w13", "w1"))
        ),
    ],
)
def test_a_layer_that_ignores_the_adapter_is_named(colocated, family: str, layer: str, adapters: str) -> None:
    """A delta net, a shared expert, or a short convolution."""
    worker: Colocated = colocated(family, trainer__backend=None, **SLOW)
    with pytest.raises(PolicyDriftError, match=rf"do not apply the same adapter.* They differ in .*{adapters}"):
        train_with(worker, lambda started: engine_ignores(started, layer), 0, [])


_OF_QWEN_3_5 = {
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    *("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"),
}


@pytest.mark.parametrize(
    ("family", "linears"),
    [
        ("qwen3_5", _OF_QWEN_3_5),
        ("qwen3_5_moe", _OF_QWEN_3_5),
        ("lfm2", {"q_proj", "k_proj", "v_proj", "out_proj", "w1", "w2", "w3", "in_proj"}),
        (
            "granitemoehybrid-mamba",
            {*("q_proj", "k_proj", "v_proj", "o_proj", "input_linear", "output_linear"), "in_proj", "out_proj"},
        ),
    ],
)
def test_an_adapter_on_the_language_model_is_merged_and_asked(tmp_path: Path, family: str, linears: set[str]) -> None:
    """The merged model has what sees too."""
    base = write_tokenizer(tiny_models.save(f"{family}-words", tmp_path / "base"), template=None)
    adapter = tmp_path / "adapter"
    inside = [name for name in linear_names(plain_model(base)) if ".layers." in name and ".visual." not in name]
    assert {name.rpartition(".")[2] for name in inside} == linears
    made = LoraConfig(r=4, target_modules=inside, init_lora_weights=False, task_type="CAUSAL_LM")
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
    assert any(".visual." in name for name, _ in merged.named_parameters()) == (family in tiny_models.SEEING)


@pytest.mark.parametrize("family", ["qwen3_5", "lfm2", "granitemoehybrid-mamba"])
def test_all_sequences_that_were_planned_run_at_once(colocated, family: str) -> None:
    """A sequence has the blocks of its states from the start, and one is let in only if a margin stays free."""
    lengths = {"rollout__maxPromptTokens": 48, "rollout__maxResponseTokens": 16}
    worker: Colocated = colocated(family, trainer__backend=None, **lengths, rollout__promptsPerStep=16)
    worker.randomise()
    worker.sync()
    asked = [[7 + index % 40] * 48 for index in range(worker.engine._core.scheduler.max_num_running_reqs)]
    worker.generate(asked)
    assert worker.engine.occupancy.waiting == 0
