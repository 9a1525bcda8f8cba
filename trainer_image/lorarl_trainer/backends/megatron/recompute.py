"""Recomputed layers and their gradients on Megatron's own path. Fused layers do not need this."""

from __future__ import annotations

from typing import Any

import torch


def let_recomputed_layers_learn(decoder: torch.nn.Module) -> None:
    """Let the decoder's input require a gradient, without which Megatron does not recompute a layer.

    Its checkpoint takes part in autograd only if its input requires a gradient. The base is frozen, so before the first
    adapter nothing does: adapters inside of such a checkpoint would stay as they are, without a message.
    Megatron-Bridge does this for `full` alone, and not for a model in whose place in memory another one was.
    """

    def require_gradient(_: torch.nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if not torch.is_grad_enabled():
            return None
        if positional:
            return (_requiring(positional[0]), *positional[1:]), named
        return positional, named | {"hidden_states": _requiring(named["hidden_states"])}

    decoder.register_forward_pre_hook(require_gradient, with_kwargs=True)


def _requiring(hidden: torch.Tensor) -> torch.Tensor:
    return hidden if hidden.requires_grad else hidden.detach().requires_grad_()
