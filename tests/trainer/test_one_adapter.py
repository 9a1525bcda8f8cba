"""Our LoRA layers in vLLM against vLLM's own."""

from __future__ import annotations

import pytest
import torch

from support.in_process import Colocated, prompts
from support.own_layers import in_common, layer_kinds, vllm_lora_layers


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
