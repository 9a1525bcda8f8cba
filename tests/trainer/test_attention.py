"""Attention over packed segments: its gradients, and what it keeps for them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from lorarl_trainer.backends.megatron.packed_attention import PackedAttention
from lorarl_trainer.devices.cpu import CpuDevice
from lorarl_trainer.kernels import attention
from lorarl_trainer.kernels.packed import Segments
from lorarl_trainer.samples.packing import Packing, pack
from lorarl_trainer.samples.sample import Sample
from support.tiny_models import VOCABULARY
from support.training import BareTrainer, elements_kept, grouped_samples

HEADS, GROUPS, SIZE, SCALE = 6, 2, 16, 0.3


def naive(packing: Packing, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The same, segment by segment, as the text of `Packing` says it."""
    outputs = []
    for queries, keys in zip(ranges(packing.query_ends), ranges(packing.key_ends), strict=True):
        rows = packing.keys[keys]
        k, v = (t[rows].repeat_interleave(HEADS // GROUPS, 1) for t in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[queries], k) * SCALE
        hidden = torch.ones(scores.shape[1:]).triu(1 + len(rows) - (queries.stop - queries.start)).bool()
        outputs.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(2), v))
    return torch.cat(outputs)


def ranges(ends: np.ndarray) -> list[slice]:
    return [slice(int(start), int(end)) for start, end in pairwise(ends)]


@pytest.mark.parametrize("kernels", ["the CPU's", "a GPU's for float32"])
def test_gradients_are_those_of_the_definition(monkeypatch: pytest.MonkeyPatch, kernels: str) -> None:
    if kernels != "the CPU's":
        monkeypatch.setattr(attention, "_attend_batch", attention._attend_batch_on_gpu)
        monkeypatch.setattr(attention, "_attend_batch_backward", attention._attend_batch_backward_on_gpu)
    packing = pack(grouped_samples(VOCABULARY, prompts=6), multiple=16)
    assert len(packing.keys) > len(packing.tokens), "some prompts are shared"
    current = Segments.of(packing, torch.device("cpu"))
    torch.manual_seed(0)
    shapes = [(len(packing.tokens), heads, SIZE) for heads in (HEADS, GROUPS, GROUPS)]
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    expected = naive(packing, *inputs)
    weights = torch.randn_like(expected)
    gradients = torch.autograd.grad((expected * weights).sum(), inputs)
    module = PackedAttention(SCALE, type("Now", (), {"get": lambda _: current})())
    found = module(*(tensor[:, None] for tensor in inputs))
    assert found.shape == (len(packing.tokens), 1, HEADS * SIZE)
    found = found.view(expected.shape)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    for ours, theirs in zip(torch.autograd.grad((found * weights).sum(), inputs), gradients, strict=True):
        assert ((ours - theirs).norm() / theirs.norm()).item() < 1e-6


@pytest.mark.parametrize("fused", [True, False], ids=["fused layers", "Megatron's layers"])
def test_what_a_layer_keeps_does_not_grow_with_the_completions_of_a_prompt(model_folder, fused: bool) -> None:
    """Flash attention wants a prompt's keys once per completion. They are gathered again in the backward pass."""
    trainer = BareTrainer(CpuDevice(), model_folder("qwen3-tied"), "fp32", packed=True, fused=fused)
    many = [Sample(np.r_[np.full(64, 4), np.full(9, 5 + i)], 64, 1.0, None) for i in range(8)]
    few = [Sample(np.r_[np.full(8, 4 + i), np.full(9, 5)], 8, 1.0, None) for i in range(8)]
    packings = [pack(samples) for samples in (many, few)]
    assert [(len(p.tokens), len(p.targets), len(p.keys)) for p in packings] == [(128, 72, 640), (128, 72, 128)]
    config = trainer.model.module.config
    keys = 2 * (640 - 128) * config.num_query_groups * config.kv_channels * config.num_layers
    more = elements_kept(trainer.model, many) - elements_kept(trainer.model, few)
    assert more < keys / 50, "statistics of padded queries alone"
