"""Families that Megatron-Bridge does not take: trained with Transformers and PEFT, and served by vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from lorarl_trainer.models.fsdp_families import FSDP_FAMILIES
from lorarl_trainer.models.model_sizes import read_model_sizes, sizes_of
from lorarl_trainer.storage.downloads import read_model_config
from support import tiny_models
from support.in_process import Colocated, prompts, samples_of, update_request, worst
from support.loop_runs import adapter_digest, run_in_process
from support.transformers_side import (
    hf_logprobs,
    mean_logprob_gradients,
    peft_model,
    peft_model_without_warnings,
    plain_model,
)
from trainer.test_parity import TOLERANCE
from trainer.test_resume import start, whole_run


@pytest.mark.parametrize("architecture", tiny_models.FSDP_SHAPES)
def test_trainer_vllm_and_peft_give_the_same_log_probabilities(colocated, tmp_path: Path, architecture: str) -> None:
    """The backend is chosen. Prompts are longer than windows, and share packed rows."""
    worker: Colocated = colocated(architecture, trainer__backend=None)
    assert any("trainer.backend is fsdp" in warning for warning in worker.built.warnings)
    assert worker.worker.backend.model.unpackable == []
    worker.randomise()
    worker.sync()
    asked = [prompt for prompt in prompts() for _ in range(2)]
    samples = samples_of(asked, rollouts := worker.generate(asked))
    peft = hf_logprobs(peft_model(worker.model, worker.write_peft(tmp_path / "adapter")), samples)
    assert worst(worker.trainer_logprobs(samples), peft) < TOLERANCE
    assert worst([c.logprobs for c in rollouts], peft) < TOLERANCE
    assert worst(hf_logprobs(plain_model(worker.model), samples), peft) > 0.01, (
        "an adapter that changes nothing would prove nothing"
    )
    before = worker.export()
    assert worker.worker.update(update_request(samples)).disagreement is None
    assert all(not torch.equal(before[name], tensor) for name, tensor in worker.export().items())


@pytest.mark.parametrize("architecture", tiny_models.FSDP_SHAPES)
def test_sizes_follow_from_config_json(model_folder: Callable[[str], Path], architecture: str) -> None:
    folder = model_folder(architecture)
    assert sizes_of(read_model_config(folder)).shapes == read_model_sizes(folder).shapes


def test_every_family_is_tested() -> None:
    assert set(FSDP_FAMILIES) <= {name.partition("-")[0] for name in tiny_models.FSDP_SHAPES}


def test_the_language_model_alone_is_adapted_and_in_memory(colocated, tmp_path: Path) -> None:
    """Its files, which vLLM's own loader reads here, name layers in full: the vision tower has a q_proj too."""
    worker: Colocated = colocated("gemma3", trainer__backend=None, rollout__adapterSync="disk")
    worker.randomise()
    worker.sync()
    samples = samples_of(prompts(), rollouts := worker.generate(prompts()))
    model = peft_model_without_warnings(worker.model, worker.write_peft(tmp_path / "adapter"))
    adapted = [name for name, _ in model.named_modules() if name.endswith(".lora_A.default")]
    assert len(adapted) == 2 * 7 == len(worker.built.modules)
    assert all(name.startswith("base_model.model.model.language_model.layers.") for name in adapted)
    assert worst([c.logprobs for c in rollouts], hf_logprobs(model, samples)) < TOLERANCE
    names = [name for name, _ in worker.worker.backend.model.base_parameters()]
    assert not [name for name in names if "vision" in name or "projector" in name]
    base = worker.rollouts.base
    assert base.copied_bytes == 0 and base.shared_bytes == sum(
        parameter.nbytes for _, parameter in worker.worker.backend.model.base_parameters()
    )


@pytest.mark.parametrize(
    "architecture",
    [
        "gpt_oss",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("gemma4", "qwen3_5_moe", "glm4_moe_lite", "lfm2")),
        pytest.param("granitemoehybrid-mamba", marks=pytest.mark.long),
    ],
)
def test_an_interrupted_run_ends_in_the_same_bytes(colocated, tmp_path: Path, architecture: str) -> None:
    changes = {"architecture": architecture, "trainer__backend": None}
    expected, _ = whole_run(colocated, tmp_path / "whole", **changes)
    asyncio.run(run_in_process(start(colocated, tmp_path / "parts", **changes), stop_after=2))
    asyncio.run(run_in_process(start(colocated, tmp_path / "parts", **changes)))
    assert adapter_digest(tmp_path / "parts") == expected


@pytest.mark.parametrize(
    "architecture",
    [
        "gemma2",
        "phi",
        "granitemoehybrid",
        "granitemoehybrid-mamba",
        "cohere2",
        "qwen3_5",
        "lfm2",
        "gemma4",
        "gemma4-alike",
        "gpt_oss",
        "qwen3_5_moe",
        "glm4_moe",
        "glm4_moe_lite",
    ],
)
def test_gradients_are_those_of_transformers(colocated, tmp_path: Path, architecture: str) -> None:
    """Capped scores and logits, a bias of the logits, windows and scaled logits have gradients of lorarl's."""
    worker: Colocated = colocated(architecture, trainer__backend=None)
    worker.randomise()
    worker.sync()
    samples = samples_of(prompts(), worker.generate(prompts()))
    trained = worker.worker.backend
    trained._trainer.forward_backward(update_request(samples))
    copies = [gradient.clone() for gradient in trained.optimizer.gradients]
    found = trained.layout.gather(copies)
    found = {name: tensor.clone() for name, tensor in found.items()}
    model = peft_model(worker.model, worker.write_peft(tmp_path / "adapter"), trainable=True)
    theirs = mean_logprob_gradients(model, samples)
    assert theirs.keys() == found.keys()
    for name, gradient in theirs.items():
        # The rounding of its sums is of the size of the largest.
        assert torch.allclose(found[name], gradient, atol=2e-5 * max(1.0, float(gradient.abs().max()))), name


@pytest.mark.parametrize("architecture", ["gpt_oss", "lfm2", "granitemoehybrid-mamba"])
def test_it_learns_and_vllm_follows(colocated, architecture: str) -> None:
    """Answers with an advantage become likelier, step by step, in both engines alike."""
    worker: Colocated = colocated(architecture, trainer__backend=None)
    worker.sync()
    samples = samples_of(prompts(), worker.generate(prompts()))
    likely = [mean(worker.trainer_logprobs(samples))]
    for _ in range(4):
        worker.worker.update(update_request(samples))
        likely.append(mean(worker.trainer_logprobs(samples)))
    assert likely == sorted(likely) and likely[-1] > likely[0] + 0.3
    worker.sync()
    answered = samples_of(prompts(), rollouts := worker.generate(prompts()))
    assert worst([c.logprobs for c in rollouts], worker.trainer_logprobs(answered)) < TOLERANCE


def mean(logprobs: Sequence[np.ndarray]) -> float:
    return float(np.concatenate(logprobs).mean())
