"""The adapter's gradient of every loss, against autograd through Transformers and PEFT, sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.backends.layout import AdapterLayout
from lorarl_trainer.devices.cpu import CpuDevice
from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.peft_format import adapter_config, write_adapter
from lorarl_trainer.samples.sample import Sample
from support.tiny_models import VOCABULARY
from support.training import BareTrainer, grouped_samples, relative_difference
from support.transformers_side import gradients, response_logprobs

TEMPERATURE, LIMIT = 0.8, 40

type Values = torch.Tensor
"""Of the response tokens of one sample, [N]."""


def ppo(low: float, high: float) -> Callable[[Values, Values, float], Values]:
    def loss(new: Values, old: Values, advantage: float) -> Values:
        ratio = (new - old).exp()
        return -torch.min(ratio * advantage, ratio.clip(1 - low, 1 + high) * advantage)

    return loss


def gspo(new: Values, old: Values, advantage: float) -> Values:
    ratio = (new - old).mean().exp()
    return -torch.min(ratio * advantage, ratio.clip(0.8, 1.3) * advantage) * torch.ones_like(new)


def cispo(new: Values, old: Values, advantage: float) -> Values:
    return -(new - old).exp().clip(max=1.2).detach() * advantage * new


def sapo(new: Values, old: Values, advantage: float) -> Values:
    temperature = 1.0 if advantage > 0 else 1.05
    return -advantage * 4 / temperature * torch.sigmoid(temperature * ((new - old).exp() - 1))


CASES: dict[str, tuple[dict[str, Any], Callable[[Values, Values, float], Values]]] = {
    "grpo": ({"klCoefficient": 0.1}, ppo(0.2, 0.2)),
    "dr_grpo": ({}, ppo(0.2, 0.2)),
    "reinforce": ({}, lambda new, old, advantage: -(new - old).exp() * advantage),
    "dapo": ({"lossAggregation": "sequence_mean"}, ppo(0.2, 0.28)),
    "gspo": ({"gspo": {"clipRangeLow": 0.2, "clipRangeHigh": 0.3}}, gspo),
    "cispo": ({"cispo": {"maxWeight": 1.2}, "klCoefficient": 0.1}, cispo),
    "sapo": ({}, sapo),
}


@pytest.fixture(scope="module")
def trainer(model_folder) -> BareTrainer:
    """Packs samples into several micro-batches."""
    return BareTrainer(CpuDevice(), model_folder("qwen2"), "fp32", budget=150, packed=True)


@pytest.fixture(scope="module")
def samples(trainer: BareTrainer) -> list[Sample]:
    """Samples of ragged groups, whose ratios are on both sides of every clipping point."""
    found, stream = grouped_samples(VOCABULARY, prompts=6), np.random.default_rng(5)
    logprobs = trainer.trainer.log_probabilities(found, TEMPERATURE)
    return [
        replace(sample, rollout_logprobs=(mine + stream.normal(0, 0.4, len(mine))).astype(np.float32))
        for sample, mine in zip(found, logprobs, strict=True)
    ]


@pytest.fixture(scope="module")
def peft(trainer: BareTrainer, model_folder, tmp_path_factory: pytest.TempPathFactory) -> PeftModel:
    """The same model in Transformers, with the same adapter."""
    folder: Path = tmp_path_factory.mktemp("peft") / "adapter"
    adapter = {name: tensor.detach().clone() for name, tensor in trainer.model.export().items()}
    config = AdapterConfig(8, 16)  # as in `tiny_job`
    write_adapter(folder, adapter, adapter_config(adapter, config, str(model_folder("qwen2"))))
    base = AutoModelForCausalLM.from_pretrained(model_folder("qwen2"), dtype=torch.float32)
    return PeftModel.from_pretrained(base, folder, is_trainable=True).eval()


def logprobs_of(model: PeftModel, sample: Sample) -> Values:
    return response_logprobs(model, torch.from_numpy(sample.tokens), sample.prompt_length, TEMPERATURE)


@pytest.mark.parametrize("kind", CASES)
def test_gradients_are_those_of_autograd_through_peft(
    trainer: BareTrainer, samples: list[Sample], peft: PeftModel, kind: str
) -> None:
    fields, token_losses = CASES[kind]
    choice = get_algorithm(AlgorithmSpec.model_validate({"type": kind, **fields}), LIMIT).loss
    tokens = sum(sample.response_length for sample in samples)
    loss, _ = trainer.loss_and_gradients(
        samples, loss=choice, total_tokens=tokens, total_samples=len(samples), on_policy=False
    )
    found = AdapterLayout(trainer.model).gather(trainer.optimizer.gradients)

    peft.zero_grad()
    total = torch.zeros(())
    for sample in samples:
        new = logprobs_of(peft, sample)
        assert sample.rollout_logprobs is not None
        losses = token_losses(new, torch.from_numpy(sample.rollout_logprobs), sample.advantage)
        if penalty := fields.get("klCoefficient"):
            with torch.no_grad(), peft.disable_adapter():
                log_ratio = logprobs_of(peft, sample) - new.detach()
            # d/dx of exp(b - x) - 1 - (b - x) is 1 - exp(b - x); its value is added without a second gradient.
            k3 = log_ratio.exp() - 1 - log_ratio
            losses = losses + penalty * (k3 + (1 - log_ratio.exp()) * (new - new.detach()))
        divisor = {"token_mean": tokens, "sequence_mean": len(samples) * len(new), "constant": len(samples) * LIMIT}
        total = total + losses.sum() / divisor[choice.aggregation]
    total.backward()
    expected = gradients(peft)
    assert loss == pytest.approx(total.item(), abs=1e-6)
    assert found.keys() == expected.keys()
    assert relative_difference(found, expected) < 1e-5
