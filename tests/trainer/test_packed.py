"""Packings with shared prompts give the same as padded rows: on the CPU, in fp32, to the last digits."""

from __future__ import annotations

import pytest
import torch

from lorarl_trainer.backends.megatron.fused_layer import fuse_layers
from lorarl_trainer.backends.megatron.packed_attention import unpackable
from lorarl_trainer.backends.registry import get_backend
from lorarl_trainer.devices.cpu import CpuDevice
from lorarl_trainer.errors import InputError
from lorarl_trainer.models.model_sizes import read_model_sizes
from lorarl_trainer.planning.activations import low_rank_bytes
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.planning.usual import decide
from lorarl_trainer.samples.requests import LossChoice
from support.tiny_models import VOCABULARY
from support.training import BareTrainer, elements_kept, grouped_samples, relative_difference


@pytest.mark.parametrize(
    ("architecture", "adapter_type"),
    [
        ("qwen3-tied", "canonical_lora"),
        ("qwen2", "canonical_lora"),
        ("qwen2", "lora"),
        ("llama", "canonical_lora"),
        ("mistral-window", "canonical_lora"),
    ],
)
def test_packed_and_padded_batches_give_the_same_loss_and_gradients(
    model_folder, architecture: str, adapter_type: str
) -> None:
    folder, samples = model_folder(architecture), grouped_samples(VOCABULARY, prompts=6)
    padded = BareTrainer(CpuDevice(), folder, "fp32", adapter_type)
    packed = BareTrainer(CpuDevice(), folder, "fp32", adapter_type, budget=150, packed=True)
    choice = LossChoice("policy_gradient", 0.2, kl_coefficient=0.1)
    loss, gradients = padded.loss_and_gradients(samples, loss=choice)
    packed_loss, packed_gradients = packed.loss_and_gradients(samples, loss=choice)
    assert len(list(packed.model.micro_batches(samples, 150))) > 1
    assert packed_loss == pytest.approx(loss, abs=1e-6)
    assert relative_difference(packed_gradients, gradients) < 1e-5
    ours, theirs = (trainer.trainer.log_probabilities(samples, 0.8) for trainer in (packed, padded))
    for left, right in zip(ours, theirs, strict=True):
        assert left == pytest.approx(right, abs=1e-5)


def test_fused_adapters_may_leave_out_parts_of_a_layer(model_folder) -> None:
    folder, samples, targets = (
        model_folder("qwen2"),
        grouped_samples(VOCABULARY),
        ("q_proj", "v_proj", "up_proj", "o_proj"),
    )
    bridge = BareTrainer(CpuDevice(), folder, "fp32", targets=targets)
    fused = BareTrainer(CpuDevice(), folder, "fp32", targets=targets, packed=True)
    assert len(fuse_layers(fused.model.module, fused.model._packing)) == 2
    (loss, gradients), (fused_loss, fused_gradients) = (
        trainer.loss_and_gradients(samples) for trainer in (bridge, fused)
    )
    assert fused_loss == pytest.approx(loss, abs=1e-6)
    assert relative_difference(fused_gradients, gradients) < 1e-5


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_is_recomputed_is_what_was_computed(model_folder, recompute: str) -> None:
    folder, samples = model_folder("qwen3-tied"), grouped_samples(VOCABULARY)
    trainers = [BareTrainer(CpuDevice(), folder, "fp32", recompute=how, packed=True) for how in ("none", recompute)]
    kept, again = (elements_kept(trainer.model, samples) for trainer in trainers)
    config, ((_, batch),) = trainers[0].model.module.config, trainers[0].model.micro_batches(samples, 10_000)
    gate_and_up = batch.tokens.numel() * config.num_layers * 2 * config.ffn_hidden_size
    assert kept - again >= gate_and_up, "what is recomputed is not kept"
    (loss, gradients), (same_loss, same_gradients) = (trainer.loss_and_gradients(samples) for trainer in trainers)
    assert same_loss == pytest.approx(loss, abs=1e-7)
    assert relative_difference(same_gradients, gradients) < 1e-6


@pytest.mark.parametrize(
    ("adapter_type", "recompute", "layers"),
    [("canonical_lora", "none", 7), ("canonical_lora", "selective", 7), ("lora", "none", 4), ("lora", "full", 0)],
)
def test_of_an_adapter_a_layer_keeps_what_its_a_makes_of_tokens_alone(
    model_folder, adapter_type: str, recompute: str, layers: int
) -> None:
    """Joined copies of its parameters, [3 R, H], [O, 3 R] and so on, would stay for each layer."""
    folder, samples = model_folder("qwen3-tied"), grouped_samples(VOCABULARY)
    small, large = (
        BareTrainer(CpuDevice(), folder, "fp32", adapter_type, recompute, packed=True, rank=rank) for rank in (8, 72)
    )
    ((_, batch),) = small.model.micro_batches(samples, 10_000)
    tokens, sizes = batch.tokens.numel(), read_model_sizes(folder)
    more = elements_kept(large.model, samples) - elements_kept(small.model, samples)
    assert more == tokens * sizes.layers * layers * 64
    planned = [
        low_rank_bytes(sizes, AdapterSize.of(spec.adapter, sizes), decide(spec, sizes, None))[0]
        for spec in (small.spec, large.spec)
    ]
    assert 4 * more == tokens * (planned[1] - planned[0])


def test_a_prompt_is_computed_once_for_its_completions(model_folder) -> None:
    packed = BareTrainer(CpuDevice(), model_folder("qwen2"), "fp32", packed=True)
    samples = grouped_samples(VOCABULARY)
    ((_, batch),) = packed.model.micro_batches(samples, 10_000)
    prompts = {tuple(s.tokens[: s.prompt_length].tolist()) for s in samples}
    tokens = sum(map(len, prompts)) + sum(s.response_length - 1 for s in samples)
    assert batch.tokens.shape == (1, -(-tokens // 16) * 16)
    seen = []
    hook = packed.model.module.decoder.layers[0].register_forward_hook(
        lambda *arguments: seen.append(arguments[2][0].shape[0])
    )
    with torch.no_grad():
        packed.model.log_probabilities(batch, 1.0)
    hook.remove()
    assert seen == [batch.tokens.shape[1]]


def test_what_packings_are_not_made_for_is_seen(model_folder) -> None:
    model = BareTrainer(CpuDevice(), model_folder("qwen2"), "fp32").model.module
    assert unpackable(model) == []
    model.config.window_size, model.config.attention_dropout = (7, 0), 0.1
    assert unpackable(model) == ["a sliding window", "attention dropout"]


def test_logits_that_are_more_than_a_product_are_refused(model_folder, monkeypatch: pytest.MonkeyPatch) -> None:
    get_backend("megatron").import_libraries(CpuDevice())
    from megatron.bridge.models.gemma.gemma2_provider import Gemma2OutputLayer
    from megatron.core import tensor_parallel

    monkeypatch.setattr(tensor_parallel, "ColumnParallelLinear", Gemma2OutputLayer)
    with pytest.raises(InputError, match=r"spec\.model\.uri: got .*Gemma2OutputLayer.*Choose another model"):
        BareTrainer(CpuDevice(), model_folder("qwen2"), "fp32")
