"""A KL penalty whose weight follows from the divergence that is to be kept.

D. Ziegler et al., "Fine-Tuning Language Models from Human Preferences" (arXiv:1909.08593), section 2.2.
"""

from __future__ import annotations

import math

GAIN, LARGEST_ERROR = 0.1, 0.2
"""The paper's."""


def adapted(coefficient: float, kl: float, target: float) -> float:
    """Return the weight for the next step: coefficient (1 + 0.1 e), where e = clip(kl / target - 1, -0.2, 0.2).

    A divergence that is not a number changes nothing.
    """
    if not math.isfinite(kl):
        return coefficient
    error = min(LARGEST_ERROR, max(-LARGEST_ERROR, kl / target - 1))
    return coefficient * (1 + GAIN * error)
