"""Random tensors of adapters, each with its own stream: the same on every parallel layout."""

from __future__ import annotations

import hashlib

import torch


def uniform(shape: tuple[int, ...], bound: float, seed: str, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return a tensor that is uniform in +-bound, drawn from a stream of this seed alone."""
    stream = torch.Generator(device).manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:7]))
    return torch.empty(shape, device=device).uniform_(-bound, bound, generator=stream)
