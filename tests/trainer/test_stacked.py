"""The gradients of a layer's experts reach the optimizer as one tensor, and are those of each expert's own."""

from __future__ import annotations

import pytest
import torch

from lorarl_trainer.devices.cpu import CpuDevice
from support.tiny_models import VOCABULARY
from support.training import BareTrainer, grouped_samples

LAYERS = 2


@pytest.mark.parametrize("experts", ["perExpert", "sharedOuter"])
@pytest.mark.parametrize("adapter_type", ["canonical_lora", "lora"])
def test_stacked_gradients_are_those_of_each_parameter(model_folder, adapter_type: str, experts: str) -> None:
    trainer = BareTrainer(CpuDevice(), model_folder("qwen3_moe"), "fp32", adapter_type, packed=True, experts=experts)
    samples, stacked = grouped_samples(VOCABULARY), trainer.model.stacked
    # A and B of gate, up and down, or of gate and up together, and down.
    assert len(stacked) == LAYERS * (6 if adapter_type == "canonical_lora" else 4)
    assert sorted({len(one.parts) for one in stacked}) == ([4] if experts == "perExpert" else [1, 4])
    arrived, parts = [], [part for one in stacked for part in one.parts]
    for part in parts:
        part.register_post_accumulate_grad_hook(lambda parameter: arrived.append(parameter))
    loss, found = trainer.loss_and_gradients(samples)
    assert not arrived, "the optimizer has taken it as one"
    trainer.optimizer.require_gradients()
    for one in stacked:
        one.takers.clear()
    same_loss, expected = trainer.loss_and_gradients(samples)
    assert len(arrived) == len(parts) and same_loss == loss
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())
    assert all(gradient.any() for gradient in expected.values())


def test_gradients_of_another_adapter_are_not_added(model_folder) -> None:
    trainer = BareTrainer(CpuDevice(), model_folder("qwen3_moe"), "fp32", packed=True)
    model, samples = trainer.model, grouped_samples(VOCABULARY)
    trainer.loss_and_gradients(samples)
    with model.holding([value.clone() for value in trainer.optimizer.values]):
        _, found = trainer.loss_and_gradients(samples)
    assert not any(gradient.any() for gradient in found.values())
    assert all(part.grad is not None for stacked in model.stacked for part in stacked.parts)
