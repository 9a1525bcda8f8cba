"""The routers of a mixture of experts in Transformers: what they choose, and let them choose something else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear

from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.samples.sample import Sample

from .transformers_side import response_logprobs

PROJECTIONS = {"mixtral": ("block_sparse_moe", "w1", "w3", "w2")}
PROJECTIONS |= dict.fromkeys(("qwen3_moe", "qwen3_moe-shares", "olmoe"), ("mlp", "gate_proj", "up_proj", "down_proj"))
"""Where a layer's experts are, and the names of an expert's layers."""


def of_each_expert(
    tensors: dict[str, torch.Tensor], layers: int, names: tuple[str, ...], experts: int = 4, rank: int = 4
) -> dict[str, torch.Tensor]:
    """PEFT's tensors of experts, by the names of the experts' own layers.

    PEFT has one adapter for the experts of a layer. A is expert-major. B is rank-major. Gate and up have one adapter of
    twice the rank.
    """
    (block, *gate_up, down), found = names, {}
    for layer in range(layers):
        theirs, prefix = f"model.layers.{layer}.mlp.experts.", f"model.layers.{layer}.{block}.experts."
        both_a = tensors[f"{theirs}base_layer.lora_A.weight"].unflatten(0, (experts, 2, rank))
        both_b = tensors[f"{theirs}base_layer.lora_B.weight"].unflatten(1, (2, rank, experts))
        down_a = tensors[f"{theirs}lora_A.weight"].unflatten(0, (experts, rank))
        down_b = tensors[f"{theirs}lora_B.weight"].unflatten(1, (rank, experts))
        for expert in range(experts):
            for part, name in enumerate(gate_up):
                found[f"{prefix}{expert}.{name}.lora_A.weight"] = both_a[expert, part]
                rows = both_b.chunk(2)[part]
                found[f"{prefix}{expert}.{name}.lora_B.weight"] = rows[:, part, :, expert]
            found[f"{prefix}{expert}.{down}.lora_A.weight"] = down_a[expert]
            found[f"{prefix}{expert}.{down}.lora_B.weight"] = down_b[:, :, expert]
    return found


def summed_outer(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gradients of experts, where those of a layer share the matrices on the side of the hidden state."""
    config, owner, sums = AdapterConfig(8, 16, shares_outer=True), {}, dict[tuple[str, str], Any]()
    for name, tensor in tensors.items():
        layer, _, matrix = name.removesuffix(".weight").partition(".lora_")
        owner[name] = config.owner(layer, "A" if matrix == "A" else "B"), matrix
        sums[owner[name]] = sums.get(owner[name], 0) + tensor
    return {name: sums[owner[name]] for name in tensors}


def with_any_routing(samples: Sequence[Sample], layers: int = 2, experts: int = 4, active: int = 2) -> list[Sample]:
    """Samples that a rollout has sent anywhere: hardly a token's experts are those of the model's routers."""
    stream = np.random.default_rng(0)
    of_prompts: dict[bytes, np.ndarray] = {}

    def rows(count: int) -> np.ndarray:
        return stream.random((count, layers, experts)).argsort(-1)[..., :active].astype(np.uint8)

    found = []
    for sample in samples:
        # Completions of one prompt share what was computed for it.
        prompt = of_prompts.setdefault(sample.tokens[: sample.prompt_length].tobytes(), rows(sample.prompt_length))
        found.append(replace(sample, routing=np.concatenate([prompt, rows(sample.response_length - 1)])))
    return found


def routers_of(model: torch.nn.Module) -> list[Any]:
    """In the order of the layers."""
    return [module for _, module in model.named_modules() if type(module).__name__.endswith("TopKRouter")]


@torch.no_grad()
def chosen_by(model: torch.nn.Module, tokens: np.ndarray) -> np.ndarray:
    """The experts of each token but the last, [T - 1, layers, K], sorted."""
    found: list[torch.Tensor] = []
    hooks = [router.register_forward_hook(lambda *a: found.append(a[2][2].clone())) for router in routers_of(model)]
    model(torch.from_numpy(tokens[:-1])[None])
    for hook in hooks:
        hook.remove()
    return torch.stack(found, 1).sort(-1).values.numpy()


@contextmanager
def sent_to(model: torch.nn.Module, sample: Sample) -> Iterator[None]:
    """Let tokens go to the experts of a sample's routing. Their weights, and gradients, are the router's own."""
    assert sample.routing is not None
    for layer, router in enumerate(routers_of(model)):
        # The last token predicts nothing that is wanted.
        rows = torch.from_numpy(sample.routing[:, layer].astype(np.int64))
        router.forward = forced(router, torch.cat([rows, rows[-1:]]))
    try:
        yield
    finally:
        for router in routers_of(model):
            del router.forward


def forced(router: Any, chosen_T_K: torch.Tensor) -> Any:
    def forward(hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = linear(hidden_states.reshape(-1, hidden_states.shape[-1]), router.weight)
        weights = logits.softmax(-1).gather(-1, chosen_T_K)
        if getattr(router, "norm_topk_prob", True):
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights, chosen_T_K

    return forward


def backward_as_sent(model: Any, samples: Sequence[Sample]) -> list[np.ndarray]:
    """Return the log-probabilities of samples with their routing, after the backward pass of their mean loss."""
    found, total = [], sum(sample.response_length for sample in samples)
    for sample in samples:
        with sent_to(model, sample):
            logprobs = response_logprobs(model, torch.from_numpy(sample.tokens), sample.prompt_length)
            (-logprobs.sum() / total).backward()
        found.append(logprobs.detach().numpy())
    return found
