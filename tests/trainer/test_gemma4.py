"""Gemma 4: layers with keys of others, values that are keys, and linear layers outside of the decoder's layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lorarl_trainer.errors import PolicyDriftError
from lorarl_trainer.models.model_sizes import read_model_sizes
from support import tiny_models
from support.in_process import Colocated, prompts, samples_of, update_request, worst
from support.silent_faults import SLOW, engine_ignores, train_with
from support.transformers_side import (
    hf_logprobs,
    mean_logprob_gradients,
    peft_model,
    peft_model_without_warnings,
    plain_model,
)
from trainer.test_parity import TOLERANCE


@pytest.mark.parametrize("architecture", ["gemma4", "gemma4-alike"])
def test_published_files_are_of_all_linear_layers_of_the_language_model(
    colocated, tmp_path: Path, architecture: str
) -> None:
    """vLLM's own loader reads them here."""
    worker: Colocated = colocated(architecture, trainer__backend=None, rollout__adapterSync="disk")
    worker.randomise()
    worker.sync()
    samples = samples_of(prompts(), rollouts := worker.generate(prompts()))
    model = peft_model_without_warnings(worker.model, worker.write_peft(tmp_path / "adapter"))
    adapted = {name.removesuffix(".lora_A.default") for name, _ in model.named_modules() if name.endswith("_A.default")}
    linear = {
        f"base_model.model.{name}"
        for name, module in plain_model(worker.model).named_modules()
        if isinstance(module, torch.nn.Linear) and ".language_model." in name
    }
    assert adapted == linear
    assert len(adapted) == (2 * 9 + 2 * 9 + 2 * 7 + 1 if architecture == "gemma4" else 3 * 7 + 3 * 6)
    assert worst([c.logprobs for c in rollouts], hf_logprobs(model, samples)) < TOLERANCE
    assert worker.rollouts.base.copied_bytes == 0


@pytest.mark.parametrize(
    "layer", ["per_layer_model_projection", pytest.param("per_layer_input_gate", marks=pytest.mark.long)]
)
def test_a_layer_of_the_embeddings_that_ignores_the_adapter_is_named(colocated, layer: str) -> None:
    worker: Colocated = colocated("gemma4", trainer__backend=None, **SLOW)
    with pytest.raises(PolicyDriftError, match=rf"do not apply the same adapter.* They differ in .*{layer}"):
        train_with(worker, lambda started: engine_ignores(started, layer), 0, [])


def test_gradients_are_the_same_where_layers_are_computed_again(colocated, tmp_path: Path) -> None:
    """A layer that is computed again takes the keys that an earlier one has left."""
    worker: Colocated = colocated("gemma4", trainer__backend=None, trainer__recompute="full")
    worker.randomise()
    worker.sync()
    samples = samples_of(prompts(), worker.generate(prompts()))
    trained = worker.worker.backend
    trained._trainer.forward_backward(update_request(samples))
    found = trained.layout.gather([gradient.clone() for gradient in trained.optimizer.gradients])
    found = {name: tensor.clone() for name, tensor in found.items()}
    model = peft_model(worker.model, worker.write_peft(tmp_path / "adapter"), trainable=True)
    theirs = mean_logprob_gradients(model, samples)
    assert theirs.keys() == found.keys()
    assert all(torch.allclose(found[name], gradient, atol=1e-5) for name, gradient in theirs.items())


def test_files_may_have_keys_that_no_layer_uses(tmp_path: Path) -> None:
    folder = tiny_models.save("gemma4", tmp_path)
    sizes, file = read_model_sizes(folder).shapes, folder / "model.safetensors"
    tensors = load_file(file)
    for name in ("k_proj", "v_proj", "k_norm"):
        own = tensors[f"model.language_model.layers.0.self_attn.{name}.weight"]
        tensors[f"model.language_model.layers.4.self_attn.{name}.weight"] = own.clone()
    save_file(tensors, file, {"format": "pt"})
    assert read_model_sizes(folder).shapes == sizes
