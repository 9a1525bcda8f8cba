"""Two ranks (gloo) that share a layer's experts compute what one rank does, and what Transformers and PEFT do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lorarl_api.v1alpha1 import AdapterSpec
from lorarl_trainer.backends.layout import AdapterLayout
from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.peft_format import adapter_config, write_adapter
from lorarl_trainer.lora.random_tensors import uniform
from support.in_process import worst
from support.routers import PROJECTIONS, of_each_expert, sent_to
from support.transformers_side import gradients, peft_model, response_logprobs
from trainer.expert_ranks import ARCHITECTURE, CASES, RANKS, all_samples, share_of
from trainer.test_parity import TOLERANCE

LAYERS = 2
Found = dict[str, list[dict[str, Any]]]
"""By case: what one rank finds, and each of the two."""


@pytest.fixture(scope="module")
def found(model_folder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Found]:
    folder = tmp_path_factory.mktemp("expert-ranks")
    (folder / ARCHITECTURE).symlink_to(model_folder(ARCHITECTURE))
    alone = {}
    for name, case in CASES.items():
        trainer = case.trainer(folder)
        shapes = AdapterLayout(trainer.model).shapes
        first = {hf: target.hf_names[0] for target in trainer.model.targets for hf in target.hf_names}
        adapter = {
            # One A for the parts of `lora`.
            tensor: uniform(shape, 0.1, first[tensor.partition(".lora_")[0]] + tensor[-len("A.weight") :])
            if "lora_A" in tensor
            else uniform(shape, 0.1, tensor)
            for tensor, shape in shapes.items()
        }
        save_file(adapter, folder / f"{name}.safetensors")
        alone[name] = case.found(trainer, adapter, all_samples()), adapter
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    command = [sys.executable, str(Path(__file__).with_name("expert_ranks.py")), str(folder)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    of_ranks = {
        name: [torch.load(folder / f"{name}-{r}.pt", weights_only=False) for r in range(RANKS)] for name in CASES
    }
    return folder, {name: [{**alone[name][0], "adapter": alone[name][1]}, *of_ranks[name]] for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_have_the_gradients_of_one(found: tuple[Path, Found], name: str) -> None:
    one, *ranks = found[1][name]
    assert one["gradients"].keys() == one["adapter"].keys()
    for rank, of_rank in enumerate(ranks):
        assert of_rank["loss"] == pytest.approx(one["loss"], abs=1e-6)
        assert of_rank["norm"] == pytest.approx(one["norm"], rel=1e-5)
        assert of_rank["gradients"].keys() == one["gradients"].keys()
        assert worst(of_rank["logprobs"], one["logprobs"][share_of(rank)]) < TOLERANCE
        for tensor, expected in one["gradients"].items():
            assert bool(expected.any()), tensor
            assert torch.allclose(of_rank["gradients"][tensor], expected, rtol=0, atol=1e-6), tensor


def test_each_rank_has_half_of_the_experts_and_no_more_unless_an_engine_wants_them(found: tuple[Path, Found]) -> None:
    for one, *ranks in found[1].values():
        assert [of_rank["counts"] for of_rank in ranks] == [one["counts"]] * RANKS
        of_experts = LAYERS * 4 * 3 * 128 * 96
        assert [of_rank["base"] for of_rank in ranks] == [one["base"] - of_experts // 2] * RANKS


def test_tokens_go_where_the_rollout_sent_them(found: tuple[Path, Found]) -> None:
    for one, *ranks in found[1].values():
        other, known = np.sum([of_rank["replayed"] for of_rank in ranks], axis=0)
        assert 0 < one["replayed"][1] <= known, "both ranks compute a prompt whose completions they share"
        assert other / known > 0.7


@pytest.mark.parametrize("name", CASES)
def test_without_advantages_no_rank_has_a_gradient(found: tuple[Path, Found], name: str) -> None:
    assert [of_rank["without advantages"] for of_rank in found[1][name]] == [0.0] * (1 + RANKS)


def test_two_ranks_compute_what_transformers_and_peft_do(found: tuple[Path, Found], tmp_path: Path) -> None:
    folder, of_cases = found
    one, *ranks = of_cases["everything"]
    spec = AdapterSpec(rank=8, alpha=16, target_modules=["all-linear"])
    config = adapter_config(one["adapter"], AdapterConfig.of(spec, 4), base_model="")
    write_adapter(tmp_path / "adapter", one["adapter"], config)
    model, samples = peft_model(folder / ARCHITECTURE, tmp_path / "adapter", trainable=True), all_samples()
    theirs, total = [], sum(sample.response_length for sample in samples)
    for sample in samples:
        with sent_to(model, sample):
            logprobs = response_logprobs(model, torch.from_numpy(sample.tokens), sample.prompt_length)
            (-logprobs.sum() / total).backward()
        theirs.append(logprobs.detach().numpy())
    expected = gradients(model)
    expected |= of_each_expert(expected, LAYERS, PROJECTIONS[ARCHITECTURE])
    for rank, of_rank in enumerate(ranks):
        assert worst(of_rank["logprobs"], theirs[share_of(rank)]) < TOLERANCE
        assert all(torch.allclose(g, expected[name], rtol=0, atol=1e-6) for name, g in of_rank["gradients"].items())
