"""What the codes of weights and of scales stand for in NF4, for the plain functions and for the kernel.

They are float32 on the device that is named, also where a library that loads a model has set other defaults.

The steps: T. Dettmers et al., "8-bit Optimizers via Block-wise Quantization", arXiv:2110.02861, section 2.
"""

from __future__ import annotations

from functools import cache

import torch

_LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Quantiles of a normal distribution, as bitsandbytes has them."""


@cache
def levels(device: torch.device) -> torch.Tensor:
    """Return what the codes stand for, [16]."""
    return torch.tensor(_LEVELS, dtype=torch.float32, device=device)


@cache
def steps(device: torch.device) -> torch.Tensor:
    """Return what the bytes of scales stand for, [256]: each decade has twice as many as the one below."""
    found = [0.0, 1.0]
    for exponent in range(7):
        bounds = torch.linspace(0.1, 1.0, 2**exponent + 1, dtype=torch.float32, device="cpu")
        decade = (10.0 ** (exponent - 6) * ((bounds[:-1] + bounds[1:]) / 2)).tolist()
        found += decade + [-one for one in decade]
    return torch.tensor(sorted(found), dtype=torch.float32, device=device)
