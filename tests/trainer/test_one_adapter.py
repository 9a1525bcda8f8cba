"""Our LoRA layers in vLLM against vLLM's own."""

from __future__ import annotations

import pytest
import torch

from lorarl_trainer.models.model_sizes import read_model_sizes
from lorarl_trainer.planning.adapter_size import AdapterSize
from support import tiny_models
from support.in_process import Colocated, prompts
from support.own_layers import in_common, layer_kinds, vllm_lora_layers

RARELY = [name for name in tiny_models.FSDP_SHAPES if name not in ("olmo2", "gpt2", "phi3")]


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("qwen3-tied", {"adapter__rank": 5}),  # vLLM rounds it up to 8
        ("qwen2", {"adapter__type": "lora"}),
        ("llama", {"adapter__rank": 32, "adapter__targetModules": "[q_proj, v_proj, up_proj, down_proj]"}),
    ],
)
def test_they_generate_the_same(
    colocated, monkeypatch: pytest.MonkeyPatch, architecture: str, changes: dict[str, object]
) -> None:
    ours: Colocated = colocated(architecture, **changes)
    with vllm_lora_layers(monkeypatch):
        theirs: Colocated = colocated(architecture, **changes)
    assert all(kind.startswith("OneAdapter") for kind in layer_kinds(ours)) and len(layer_kinds(ours)) == 3
    assert all(kind.endswith("WithLoRA") for kind in layer_kinds(theirs))
    for worker in (ours, theirs):
        worker.randomise()
        worker.sync()
    assert all(torch.equal(a, b) for a, b in zip(ours.vllm_buffers(), theirs.vllm_buffers(), strict=True))
    assert any(bool(b.any()) for b in ours.vllm_buffers())
    share, apart = in_common(ours.generate(prompts()), theirs.generate(prompts()))
    assert share == 1.0 and apart.max() < 1e-5
    assert ours.greedy(prompts()) == theirs.greedy(prompts())


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("qwen3-tied", {"adapter__rank": 64}),
        ("qwen3-tied", {"adapter__rank": 64, "adapter__targetModules": "[q_proj, v_proj]"}),
        ("qwen2", {"adapter__targetModules": "['*.layers.0.mlp.*']"}),  # vLLM takes it for that of all layers
        ("qwen2", {"adapter__type": "lora"}),
        ("olmo2", {"trainer__backend": None}),  # Transformers' own modules
        ("gpt2", {"trainer__backend": None}),
        ("phi3", {"trainer__backend": None}),
        *(pytest.param(name, {"trainer__backend": None}, marks=pytest.mark.long) for name in RARELY),
    ],
)
def test_their_buffers_are_as_large_as_planned(colocated, architecture: str, changes: dict[str, object]) -> None:
    worker: Colocated = colocated(architecture, **changes)
    planned = AdapterSize.of(worker.spec.adapter, read_model_sizes(worker.model))
    assert elements_of_buffers(worker) == planned.served(1)


def elements_of_buffers(worker: Colocated) -> int:
    """How many elements the memory has that vLLM's adapter tensors are views of."""
    modules = worker.engine.llm_engine.collective_rpc(lambda w: w.model_runner.lora_manager._adapter_manager.modules)[0]
    stacked = [one for module in modules.values() for one in (*module.lora_a_stacked, *module.lora_b_stacked)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() // one.itemsize for one in stacked}
    return sum(storages.values())


def test_only_what_is_targeted_has_an_adapter(colocated) -> None:
    worker: Colocated = colocated(adapter__targetModules="[q_proj]")
    assert layer_kinds(worker) == {"OneAdapterMergedQKV": 2}


def test_without_an_adapter_they_are_the_base(colocated) -> None:
    worker: Colocated = colocated()  # the new adapter's B is zero
    base = worker.greedy(prompts())
    worker.sync()
    assert worker.greedy(prompts()) == base
    worker.randomise()
    worker.sync()
    assert worker.greedy(prompts()) != base
