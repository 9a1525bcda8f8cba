"""A model of Transformers, with PEFT's adapter or without: what the trainer and vLLM are compared with."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from peft import PeftModel

from lorarl_api.v1alpha1 import Quantization
from lorarl_trainer.kernels.formats import FORMATS
from lorarl_trainer.kernels.quantized_linear import rounded
from lorarl_trainer.lora.files import MAGNITUDE
from lorarl_trainer.lora.tensor_names import PEFT_PREFIX
from lorarl_trainer.models.fsdp_families import auto_class
from lorarl_trainer.samples.sample import Sample


def peft_model(base: Path, adapter: Path, *, trainable: bool = False) -> PeftModel:
    """The adapter on the base."""
    return PeftModel.from_pretrained(plain_model(base), adapter, is_trainable=trainable).eval()


def peft_model_without_warnings(base: Path, adapter: Path) -> PeftModel:
    """The adapter on the base. PEFT warns of no part that it did not read."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = peft_model(base, adapter)
    assert [str(warning.message) for warning in told if "adapter" in str(warning.message)] == []
    return model


def plain_model(base: Path) -> torch.nn.Module:
    """The base, with the attention that knows all of a model's features."""
    kind = transformers.AutoConfig.from_pretrained(base).model_type
    loader = getattr(transformers, auto_class(kind))
    model: torch.nn.Module = loader.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def quantized_model(base: Path, folder: Path, quantization: Quantization) -> Path:
    """Write a model with the numbers that its codes stand for."""
    model = plain_model(base)
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            layer.weight.data = rounded(FORMATS[quantization], layer.weight.data, torch.float32)
    model.save_pretrained(folder)
    return folder


def response_logprobs(
    model: torch.nn.Module, tokens: torch.Tensor, prompt_length: int, temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities of the response tokens of one sequence, [response]. They have a gradient."""
    logits = model(tokens[None]).logits[0, :-1] / temperature
    return logits.log_softmax(-1).gather(-1, tokens[1:, None])[prompt_length - 1 :, 0]


def hf_logprobs(model: torch.nn.Module, samples: Sequence[Sample], temperature: float = 1.0) -> list[np.ndarray]:
    """Log-probabilities of the response tokens of each sample."""
    with torch.no_grad():
        return [
            response_logprobs(model, torch.from_numpy(sample.tokens), sample.prompt_length, temperature).numpy()
            for sample in samples
        ]


def gradients(model: PeftModel) -> dict[str, torch.Tensor]:
    """The adapter's gradients, by their names in PEFT's files without its prefix."""
    found = {
        name.removeprefix(PEFT_PREFIX).replace(".default", ""): parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return {name.replace(f"{MAGNITUDE}.weight", MAGNITUDE): gradient for name, gradient in found.items()}


def mean_logprob_gradients(model: PeftModel, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """The gradients of minus the mean log-probability of all response tokens.

    They are those of cross-entropy, and on policy, with advantages of 1, those of a policy gradient.
    """
    total = sum(sample.response_length for sample in samples)
    for sample in samples:
        logprobs = response_logprobs(model, torch.from_numpy(sample.tokens), sample.prompt_length)
        (-logprobs.sum() / total).backward()
    return gradients(model)
