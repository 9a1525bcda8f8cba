"""Activation checkpointing: what the backward pass computes again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from lorarl_trainer.backends.fsdp.recurrent import mixers

_MLPS = ("mlp", "feed_forward", "shared_mlp")
"""What decoder layers call it."""


def recompute(layers: Sequence[torch.nn.Module], how: str) -> None:
    """Let decoder layers compute again in the backward pass what `trainer.recompute` says.

    Delta nets keep only the inputs of their rule and of their norm in any case, and Mamba layers what their first
    projection makes. What is between takes ten times as much, so that micro-batches would be small, and a GPU would
    wait for the CPU to start their kernels.
    """
    if how == "full":
        _checkpoint(layers)
        return
    for rule, mixer in mixers(layers):
        if rule == "state_space":
            mixer.between = partial(_between_from_inputs, mixer.between)
        elif rule == "gated_delta":
            mixer.chunk_gated_delta_rule = partial(_rule_from_inputs, mixer.chunk_gated_delta_rule)
            mixer.norm.forward = partial(from_inputs, mixer.norm.forward)
    if how == "selective":
        _checkpoint([_mlp(layer) or layer for layer in layers])


def _mlp(layer: torch.nn.Module) -> torch.nn.Module | None:
    """Return a decoder layer's MLP, if it is one module."""
    return next((found for name in _MLPS if (found := getattr(layer, name, None)) is not None), None)


def from_inputs(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    """Return what a function makes of these tensors; of all that it keeps for the backward pass, keep only them.

    It takes less of the CPU's time than a checkpoint. The function may draw no random numbers, and all tensors that
    learn are among its inputs.
    """
    output: torch.Tensor = _FromInputs.apply(function, *inputs)
    return output


class _FromInputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        ctx.function = function
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        inputs = [t.detach().requires_grad_(one) for t, one in zip(ctx.saved_tensors, needed, strict=True)]
        with torch.enable_grad():
            output = ctx.function(*inputs)
        found = iter(torch.autograd.grad(output, [t for t in inputs if t.requires_grad], gradients))
        return None, *(next(found) if one else None for one in needed)


def _rule_from_inputs(
    rule: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return what a rule with Transformers' signature does."""
    return from_inputs(lambda *inputs: rule(*inputs, **options)[0], query, key, value, g, beta), None


def _between_from_inputs(between: Any, projected: torch.Tensor, segments: Any) -> torch.Tensor:
    """Return what is between the projections of a Mamba layer."""
    return from_inputs(lambda inputs: between(inputs, segments), projected)


def _checkpoint(modules: Sequence[torch.nn.Module]) -> None:
    """Keep only the inputs of these modules.

    Without reentrance, adapters learn also where no input has a gradient, because the base is frozen.
    """
    for module in modules:
        module.forward = partial(_checkpointed, module.forward)


def _checkpointed(forward: Any, *arguments: Any, **options: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **options)
    return checkpoint(partial(forward, **options), *arguments, use_reentrant=False)
