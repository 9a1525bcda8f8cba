"""Ranks (gloo) that share a layer's experts compute what one rank does, and what Transformers and PEFT do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lorarl_api.v1alpha1 import AdapterSpec
from lorarl_trainer.backends.layout import AdapterLayout
from lorarl_trainer.backends.megatron.collectives import Ranks
from lorarl_trainer.backends.megatron.local_experts import LocalExperts
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.peft_format import adapter_config, write_adapter
from lorarl_trainer.lora.random_tensors import uniform
from lorarl_trainer.lora.targets import Target
from support.in_process import owners, worst
from support.routers import PROJECTIONS, backward_as_sent, of_each_expert, summed_outer
from support.training import BareTrainer
from support.transformers_side import gradients, peft_model
from trainer.expert_ranks import ARCHITECTURE, CASES, all_samples, all_to_the_first_two_experts
from trainer.test_parity import TOLERANCE

LAYERS = 2
EVERYTHING = "everything"
SHARED = "shared matrices"
ALWAYS = (EVERYTHING, SHARED)
NAMES = [*ALWAYS, *(pytest.param(name, marks=pytest.mark.long) for name in CASES if name not in ALWAYS)]


@dataclass(frozen=True)
class Found:
    """What one rank finds of a case, what each of several does, and the adapter of all of them."""

    models: Path
    adapter: dict[str, torch.Tensor]
    one: dict[str, Any]
    ranks: list[dict[str, Any]]


@pytest.fixture(scope="module")
def find(model_folder, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Found]:
    """Run a case."""

    @cache
    def run(name: str) -> Found:
        case, folder = CASES[name], tmp_path_factory.mktemp("expert-ranks")
        (folder / ARCHITECTURE).symlink_to(model_folder(ARCHITECTURE))
        trainer = case.trainer(folder, alone=True)
        adapter = any_adapter(trainer)
        save_file(adapter, folder / f"{name}.safetensors")
        one = case.found(trainer, adapter, all_samples())
        tests = Path(__file__).parents[1]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
        script = Path(__file__).with_name("expert_ranks.py")
        command = [sys.executable, str(script), str(folder), str(case.ranks)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stderr[-4000:]
        ranks = [torch.load(folder / f"{name}-{rank}.pt", weights_only=False) for rank in range(case.ranks)]
        return Found(folder, adapter, one, ranks)

    return run


def any_adapter(trainer: BareTrainer) -> dict[str, torch.Tensor]:
    """An adapter of a trainer's shapes. Tensors that are one parameter are equal."""
    owner = owners(trainer.model.targets, AdapterConfig.of(trainer.spec.adapter, 4))
    return {name: uniform(shape, 0.1, str(owner[name])) for name, shape in AdapterLayout(trainer.model).shapes.items()}


@pytest.mark.parametrize("name", NAMES)
def test_several_ranks_compute_what_one_does(find: Callable[[str], Found], name: str) -> None:
    case, found = CASES[name], find(name)
    one, of_experts = found.one, LAYERS * 4 * 3 * 128 * 96
    assert one["gradients"].keys() == found.adapter.keys()
    assert one["replayed"][0] / one["replayed"][1] > 0.7, "a rollout has sent tokens elsewhere"
    for rank, of_rank in enumerate(found.ranks):
        assert of_rank["loss"] == pytest.approx(one["loss"], abs=1e-6)
        assert of_rank["norm"] == pytest.approx(one["norm"], rel=1e-5)
        assert worst(of_rank["logprobs"], one["logprobs"][case.share(rank)]) < TOLERANCE
        assert of_rank["gradients"].keys() == one["gradients"].keys()
        for tensor, expected in one["gradients"].items():
            assert bool(expected.any()), tensor
            assert torch.allclose(of_rank["gradients"][tensor], expected, rtol=0, atol=1e-6), tensor
        assert of_rank["without advantages"] == one["without advantages"] == 0.0
        assert of_rank["replayed"][0] / of_rank["replayed"][1] > 0.7
        if case.tensor_parallel == 1:  # which would divide the other layers, and count norms twice
            assert of_rank["counts"] == one["counts"]
            elsewhere = of_experts - of_experts // case.expert_parallel
            assert of_rank["base"] == one["base"] - elsewhere
        assert of_rank["held"] == (of_experts if case.rollouts else of_experts // case.expert_parallel)


@pytest.mark.parametrize("name", ALWAYS)
def test_two_ranks_compute_what_transformers_and_peft_do(
    find: Callable[[str], Found], tmp_path: Path, name: str
) -> None:
    case, found = CASES[name], find(name)
    spec = AdapterSpec(rank=8, alpha=16, target_modules=["all-linear"])
    config = adapter_config(found.adapter, AdapterConfig.of(spec, 4), base_model="")
    write_adapter(tmp_path / "adapter", found.adapter, config)
    model, samples = peft_model(found.models / ARCHITECTURE, tmp_path / "adapter", trainable=True), all_samples()
    theirs = backward_as_sent(model, samples)
    expected = gradients(model)
    of_experts = of_each_expert(expected, LAYERS, PROJECTIONS[ARCHITECTURE])
    expected |= summed_outer(of_experts) if name == SHARED else of_experts
    for rank, of_rank in enumerate(found.ranks):
        assert worst(of_rank["logprobs"], theirs[case.share(rank)]) < TOLERANCE
        assert all(torch.allclose(g, expected[tensor], rtol=0, atol=1e-6) for tensor, g in of_rank["gradients"].items())


def test_a_token_travels_once_to_a_rank_and_a_rank_may_get_none(find: Callable[[str], Found]) -> None:
    (*of_tokens, by_a, by_b), _ = all_to_the_first_two_experts()
    for rank, of_rank in enumerate(find(EVERYTHING).ranks):
        (*same, own_by_a, own_by_b), rows = of_rank["two experts"]
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(same, of_tokens, strict=True))
        # Of the tokens of both ranks, which are the same.
        assert torch.allclose(own_by_a, 2 * by_a.chunk(2)[rank], atol=1e-4)
        assert torch.allclose(own_by_b, 2 * by_b.chunk(2)[rank], atol=1e-4)
        assert bool(own_by_a.any()) is (rank == 0)
        # Five tokens there, and what became of both ranks' back; the gradients likewise.
        assert rows == ([5, 10, 5, 10] if rank == 0 else [5, 0, 5, 0])


@pytest.mark.parametrize(("name", "exchanges"), [(EVERYTHING, 4), (SHARED, 5)])
def test_hosts_exchange_sizes_once_a_pass(find: Callable[[str], Found], name: str, exchanges: int) -> None:
    """Recomputation sends the rows there once more, but no sizes. Some passes of one rank are of no sample."""
    for of_rank in find(name).ranks:
        rows, sizes = of_rank["exchanges of rows, of sizes"]
        assert rows == exchanges * LAYERS * sizes > 0


def test_where_experts_are_not_known_layers_exchange_sizes(find: Callable[[str], Found]) -> None:
    """One rank does not know those of its last samples. In a pass with any of them, all ranks do without."""
    _, expected = find(EVERYTHING).one["partly known"]
    exchanges, losses = zip(*(of_rank["partly known"] for of_rank in find(EVERYTHING).ranks), strict=True)
    assert losses == pytest.approx([expected] * 2, abs=1e-6)
    assert len(set(exchanges)) == 1
    rows, sizes = exchanges[0]
    passes = rows // (4 * LAYERS)
    assert passes < sizes <= passes * (1 + LAYERS)


def test_adapters_on_the_experts_of_one_rank_alone_are_refused() -> None:
    """The other one would have nothing to train, and would be waited for."""
    experts = LocalExperts(Ranks(None, 2, 0), experts=4)
    names = [f"decoder.layers.0.mlp.experts.local_experts.{number}.linear_fc2" for number in range(4)]
    targets = [Target(name, (name,)) for name in (*names, "decoder.layers.0.self_attention.linear_proj")]
    for enough in (targets, targets[:3], targets[1:3], targets[3:]):
        experts.require_adapters(enough)
    with pytest.raises(InputError, match=r"expertParallelSize: got 2 for adapters on experts of 1 of the workers"):
        experts.require_adapters(targets[:2])
