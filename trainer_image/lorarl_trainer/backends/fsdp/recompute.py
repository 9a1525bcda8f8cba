"""Activation checkpointing: what the backward pass computes again."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


def recompute(modules: Iterable[torch.nn.Module]) -> None:
    """Keep only the inputs of these modules, and compute them again in the backward pass.

    Without reentrance, adapters learn also where no input has a gradient, because the base is frozen.
    """
    for module in modules:
        module.forward = partial(_recomputed, module.forward)


def _recomputed(forward: Any, *arguments: Any, **options: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **options)
    return checkpoint(partial(forward, **options), *arguments, use_reentrant=False)
