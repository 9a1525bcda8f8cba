"""What the backward pass recomputes on Megatron's own layers: every adapter has the gradient of a run without it."""

from __future__ import annotations

import pytest
import torch

from lorarl_trainer.devices.cpu import CpuDevice
from lorarl_trainer.errors import WorkerError
from support.tiny_models import VOCABULARY
from support.training import BareTrainer, grouped_samples, relative_difference

TARGETS = {
    "attention": ["q_proj", "o_proj"],
    "MLP": ["up_proj", "down_proj"],
    "mixed": ["*.layers.1.self_attn.*", "*.mlp.*"],  # no adapter comes before the first MLP
}


@pytest.mark.parametrize("targets", TARGETS.values(), ids=TARGETS.keys())
def test_recomputation_leaves_no_adapter_without_its_gradient(model_folder, targets: list[str]) -> None:
    samples = grouped_samples(VOCABULARY)
    found = {
        recompute: BareTrainer(
            CpuDevice(), model_folder("qwen2"), "fp32", recompute=recompute, targets=targets
        ).loss_and_gradients(samples)
        for recompute in ("none", "selective", "full")
    }
    loss, gradients = found.pop("none")
    assert all(gradient.any() for gradient in gradients.values())
    for recompute, (same_loss, same_gradients) in found.items():
        assert same_loss == pytest.approx(loss, abs=1e-7), recompute
        assert relative_difference(same_gradients, gradients) < 1e-6, recompute


def test_an_adapter_without_a_gradient_stops_the_first_update(model_folder) -> None:
    """Whatever the cause: it would be published as if it had been trained."""
    trainer = BareTrainer(CpuDevice(), model_folder("qwen2"), "fp32")
    samples = grouped_samples(VOCABULARY)
    layer = trainer.model.module.decoder.layers[0].mlp
    cut = layer.register_forward_hook(
        lambda _module, _inputs, output: tuple(t if t is None else t.detach() for t in output)
    )
    with pytest.raises(WorkerError, match=r"6 of 28 adapter tensors got no gradient.*decoder\.layers\.0\.mlp"):
        trainer.loss_and_gradients(samples)
    cut.remove()
    assert all(torch.isfinite(gradient).all() for gradient in trainer.loss_and_gradients(samples)[1].values())
