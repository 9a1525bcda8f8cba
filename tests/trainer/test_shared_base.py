"""vLLM uses the trainer's own weights; only q, k and v are a copy."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lorarl_trainer.backends.megatron.collectives import Ranks
from lorarl_trainer.backends.megatron.own_heads import WHOLE, OwnHeads
from lorarl_trainer.engine.vllm.shared_base import SharedBase, query_key_value
from lorarl_trainer.errors import StaleAdapterError
from lorarl_trainer.planning.execution import PlanError
from lorarl_trainer.protocols.shared_base import SharesBase

pytestmark = pytest.mark.both_backends


def test_query_key_value_undoes_megatrons_interleaving() -> None:
    heads, groups, size, inputs = 4, 2, 3, 5
    query, key, value = (torch.randn(count * size, inputs) for count in (heads, groups, groups))
    whole = interleaved(query, key, value, groups)
    assert torch.equal(query_key_value(whole, heads, groups, size), torch.cat([query, key, value]))


def interleaved(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, groups: int) -> torch.Tensor:
    """As Megatron has them: by key-value group."""
    return torch.cat(
        [part for group in zip(*(t.chunk(groups) for t in (query, key, value)), strict=True) for part in group]
    )


@pytest.mark.parametrize(("heads", "groups", "ranks"), [(12, 2, 4), (4, 1, 2), (8, 2, 8)])
def test_ranks_that_share_a_key_value_head_have_what_vllm_gives_them(heads: int, groups: int, ranks: int) -> None:
    size = 3
    query, key, value = (torch.randn(count * size, 5) for count in (heads, groups, groups))
    whole, config = (
        interleaved(query, key, value, groups),
        SimpleNamespace(num_attention_heads=heads, num_query_groups=groups, kv_channels=size),
    )
    for rank in range(ranks):
        own = OwnHeads.of(config, Ranks(None, ranks, rank))
        shard = rank // (ranks // groups)  # vLLM's QKVParallelLinear.weight_loader
        expected = torch.cat([query.chunk(ranks)[rank], key.chunk(groups)[shard], value.chunk(groups)[shard]])
        assert torch.equal(query_key_value(own.take(WHOLE, whole), heads // ranks, 1, size), expected)
        parts = [own.take(part, of) for part, of in (("q", query), ("k", key), ("v", value))]
        assert torch.equal(torch.cat(parts), expected)
    assert OwnHeads.of(config, Ranks(None, groups, 0)) is None, "each has groups of its own"


@pytest.mark.both_backends(quick=True)
@pytest.mark.parametrize("architecture", ["qwen3-tied", "qwen2", "llama"])
def test_all_but_query_key_value_is_shared(colocated, architecture: str) -> None:
    worker = colocated(architecture)
    base = worker.rollouts.base
    fused = sum(
        p.nbytes
        for name, p in worker.worker.backend.model.base_parameters()
        if "linear_qkv" in name and "norm" not in name
    )
    assert base.copied_bytes == fused
    assert base.shared_bytes == sum(p.nbytes for _, p in worker.worker.backend.model.base_parameters()) - fused


def test_a_part_that_the_trainer_does_not_have_is_an_error(colocated, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan counts on one base model, so a second one has no place in memory."""
    given = SharedBase.__init__

    def without_one(self: SharedBase, trainer: SharesBase) -> None:
        given(self, trainer)
        del self._tensors[frozenset(["model.norm.weight"])]

    monkeypatch.setattr(SharedBase, "__init__", without_one)
    with pytest.raises(PlanError, match=r"the trainer has nothing in the layout of vLLM's model\.norm\.weight"):
        colocated()


@pytest.mark.parametrize("transport", ["tensor", "disk"])
def test_a_sync_finds_a_single_wrong_element(colocated, transport: str) -> None:
    worker = colocated(rollout__adapterSync=transport)
    worker.randomise()
    worker.sync()
    push = worker.rollouts.deliveries[0].sync.push

    def push_and_spoil(version: int) -> None:
        push(version)
        next(b for b in worker.engine.slot.buffers() if b.any())[0, 0] += 1  # vLLM's own memory

    worker.rollouts.deliveries[0].sync.push = push_and_spoil
    with pytest.raises(StaleAdapterError, match=r"version 2 did not reach vLLM: 1 of \d+ blocks differ, in \w+_proj\."):
        worker.sync()
    with pytest.raises(StaleAdapterError, match=r"vLLM's copy of model\.layers\.0\..* is not the trainer's"):
        worker.rollouts.deliveries[0].every_element.compare()
