"""vLLM uses the trainer's own weights; only q, k and v are a copy."""

from __future__ import annotations

import pytest
import torch

from lorarl_trainer.engine.vllm.shared_base import SharedBase, query_key_value
from lorarl_trainer.errors import StaleAdapterError
from lorarl_trainer.planning.execution import PlanError


def test_query_key_value_undoes_megatrons_interleaving() -> None:
    heads, groups, size, inputs = 4, 2, 3, 5
    query, key, value = (torch.randn(count * size, inputs) for count in (heads, groups, groups))
    rows = []
    for group in range(groups):
        rows += [
            query[group * 2 * size : (group + 1) * 2 * size],
            key[group * size : (group + 1) * size],
            value[group * size : (group + 1) * size],
        ]
    assert torch.equal(query_key_value(torch.cat(rows), heads, groups, size), torch.cat([query, key, value]))


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

    def without_one(self: SharedBase, tensors: dict[frozenset[str], torch.Tensor]) -> None:
        given(self, {names: tensor for names, tensor in tensors.items() if names != frozenset(["model.norm.weight"])})

    monkeypatch.setattr(SharedBase, "__init__", without_one)
    with pytest.raises(PlanError, match=r"the trainer has nothing in the layout of vLLM's model\.norm\.weight"):
        colocated()


@pytest.mark.parametrize("transport", ["tensor", "disk"])
def test_a_sync_finds_a_single_wrong_element(colocated, transport: str) -> None:
    worker = colocated(rollout__adapterSync=transport)
    worker.randomise()
    worker.sync()
    push = worker.rollouts._sync.push

    def push_and_spoil(version: int) -> None:
        push(version)
        next(b for b in worker.engine.slot.buffers() if b.any())[0, 0] += 1  # vLLM's own memory

    worker.rollouts._sync.push = push_and_spoil
    with pytest.raises(StaleAdapterError, match=r"version 2 did not reach vLLM: 1 of \d+ blocks differ, in \w+_proj\."):
        worker.sync()
    with pytest.raises(StaleAdapterError, match=r"vLLM's copy of model\.layers\.0\..* is not the trainer's"):
        worker.rollouts._every_element.compare()
