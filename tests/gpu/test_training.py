"""The trainer alone on one GPU: packed against padded rows, chunked against naive log-probabilities, fp32 gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

from lorarl_trainer.devices.cuda import CudaDevice
from lorarl_trainer.samples.sample import Sample
from support.tiny_models import VOCABULARY
from support.training import BareTrainer, grouped_samples, relative_difference

ARCHITECTURES = [
    ("qwen3-gpu", "canonical_lora"),
    ("qwen3-gpu", "lora"),
    ("qwen2-gpu", "canonical_lora"),
    ("llama-gpu", "canonical_lora"),
]


@pytest.mark.parametrize(("architecture", "adapter_type"), ARCHITECTURES)
def test_packed_and_padded_batches_differ_by_no_more_than_bf16_does(
    model_folder, architecture: str, adapter_type: str
) -> None:
    folder, samples = model_folder(architecture), grouped_samples(VOCABULARY, prompts=8, longest=60)
    exact = BareTrainer(CudaDevice(), folder, "fp32", adapter_type).loss_and_gradients(samples)
    exact_packed = BareTrainer(CudaDevice(), folder, "fp32", adapter_type, packed=True).loss_and_gradients(samples)
    padded = BareTrainer(CudaDevice(), folder, "bf16", adapter_type).loss_and_gradients(samples)
    packed = BareTrainer(CudaDevice(), folder, "bf16", adapter_type, budget=300, packed=True).loss_and_gradients(
        samples
    )
    noise = relative_difference(padded[1], exact[1])
    found = relative_difference(packed[1], exact[1])
    in_fp32 = relative_difference(exact_packed[1], exact[1])
    print(
        f"{architecture} {adapter_type}: gradient differs from fp32 by {noise:.2e} padded, {found:.2e} packed; "
        f"packed fp32 {in_fp32:.2e}"
    )
    assert (
        exact_packed[0] == pytest.approx(exact[0], abs=1e-3) and in_fp32 < 5e-3
    )  # fp32 products on tensor cores have 10 bits
    assert found < 1.5 * noise < 0.1
    assert packed[0] == pytest.approx(exact[0], abs=max(2 * abs(padded[0] - exact[0]), 2e-3))


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_is_recomputed_is_what_was_computed(model_folder, recompute: str) -> None:
    folder, samples = model_folder("qwen2-gpu"), grouped_samples(VOCABULARY, prompts=8, longest=60)
    kept = BareTrainer(CudaDevice(), folder, "bf16", packed=True).loss_and_gradients(samples)
    again = BareTrainer(CudaDevice(), folder, "bf16", recompute=recompute, packed=True).loss_and_gradients(samples)
    assert again[0] == pytest.approx(kept[0], abs=1e-5)
    assert relative_difference(again[1], kept[1]) < 5e-3  # attention's backward adds up in no fixed order


def test_chunked_log_probabilities_are_the_naive_ones() -> None:
    from lorarl_trainer.kernels.logprobs import token_log_probabilities

    if not dist.is_initialized():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    hidden = torch.randn(1000, 896, device="cuda", dtype=torch.bfloat16)
    weight = 0.05 * torch.randn(151_936, 896, device="cuda", dtype=torch.bfloat16)
    targets = torch.randint(0, 151_936, (1000,), device="cuda")
    hidden[:100] = 300 * weight[targets[:100]]  # sure of some tokens
    scales = torch.randn(1000, device="cuda")
    reference = hidden.float().requires_grad_()
    expected = (reference @ weight.float().t() / 0.7).log_softmax(1).gather(1, targets[:, None])[:, 0]
    (expected * scales).sum().backward()
    ours = hidden.clone().requires_grad_()
    found = token_log_probabilities(ours, weight, targets, 0.7, 151_936, dist.group.WORLD, 304)
    (found * scales).sum().backward()
    assert (found - expected).abs().max() < 1e-3
    assert ((ours.grad.float() - reference.grad).norm() / reference.grad.norm()).item() < 5e-3


def test_many_small_contributions_are_not_lost(model_folder) -> None:
    """A gradient summed in bf16 over 256 micro-batches stands still once it is 256 times a contribution."""
    trainer = BareTrainer(CudaDevice(), model_folder("qwen2-gpu"), "bf16", budget=1, packed=True)
    sample = grouped_samples(VOCABULARY)[0]
    total = sample.response_length
    _, once = trainer.loss_and_gradients([sample], total_tokens=total)
    _, often = trainer.loss_and_gradients([sample] * 600, total_tokens=total)
    assert relative_difference({name: gradient / 600 for name, gradient in often.items()}, once) < 1e-2


def test_a_packing_with_many_prompts_of_uneven_lengths(model_folder) -> None:
    packed = BareTrainer(CudaDevice(), model_folder("llama-gpu"), "bf16", packed=True)
    padded = BareTrainer(CudaDevice(), model_folder("llama-gpu"), "bf16")
    stream = np.random.default_rng(1)
    samples = [
        Sample(tokens, length - int(stream.integers(1, length)), 1.0, None)
        for length in stream.integers(2, 120, 200)
        for tokens in [stream.integers(4, VOCABULARY, length)]
    ]
    ours, theirs = (trainer.trainer.log_probabilities(samples, 1.0) for trainer in (packed, padded))
    assert np.mean([np.abs(a - b).mean() for a, b in zip(ours, theirs, strict=True)]) < 0.02
