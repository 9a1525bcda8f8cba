"""The surrogates of a policy gradient: how a token's probability ratio and advantage become its loss.

In an update on the policy's own samples every ratio is 1, and all of them have the same gradient, -A grad(log p); the
gated one too, since its slope at 1 is 1. They differ in later updates of a step.
Shape suffix: N response tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from lorarl_trainer.losses.base import LossInputs
from lorarl_trainer.samples.requests import LossChoice

type Surrogate = Callable[[torch.Tensor, LossInputs, LossChoice], tuple[torch.Tensor, torch.Tensor]]
"""Takes the logarithms of the ratios, with a gradient. Returns the losses and whether each ratio was clipped, [N]."""


def clipped(log_ratio_N: torch.Tensor, inputs: LossInputs, choice: LossChoice) -> tuple[torch.Tensor, torch.Tensor]:
    """Return PPO's clipped surrogate, -min(r A, clip(r, 1 - low, 1 + high) A) (arXiv:1707.06347).

    With different ranges it is DAPO's clip-higher (arXiv:2503.14476).
    """
    ratio_N, low, high = log_ratio_N.exp(), choice.clip_range, high_range(choice)
    plain_N, clipped_N = ratio_N * inputs.advantages, ratio_N.clamp(1 - low, 1 + high) * inputs.advantages
    return -torch.minimum(plain_N, clipped_N), clipped_N < plain_N


def weighted(log_ratio_N: torch.Tensor, inputs: LossInputs, choice: LossChoice) -> tuple[torch.Tensor, torch.Tensor]:
    """Return CISPO's surrogate, -w A log p with the constant w = min(r, 1 + high) (arXiv:2506.13585, equation 4).

    A `least_weight` cuts w from below, too.

    Each token keeps its gradient, however far its ratio is from 1.
    """
    ratio_N, most = log_ratio_N.detach().exp(), 1 + high_range(choice)
    weight_N = ratio_N.clamp(choice.least_weight, most)
    return -weight_N * inputs.advantages * inputs.logprobs, weight_N != ratio_N


def gated(log_ratio_N: torch.Tensor, inputs: LossInputs, choice: LossChoice) -> tuple[torch.Tensor, torch.Tensor]:
    """Return SAPO's surrogate, -f(r) A with f(r) = 4 / t sigmoid(t (r - 1)) (arXiv:2511.20347, equation 6).

    The temperature t depends on the advantage's sign. The slope of f is 1 at r = 1 and fades on both sides.
    """
    positive, other = choice.gate
    temperature_N = torch.where(inputs.advantages > 0, positive, other)
    gate_N = torch.sigmoid(temperature_N * (log_ratio_N.exp() - 1)) * (4 / temperature_N)
    return -gate_N * inputs.advantages, torch.zeros_like(log_ratio_N, dtype=torch.bool)


def high_range(choice: LossChoice) -> float:
    """Return how far above 1 the ratio is clipped."""
    return choice.clip_range if choice.clip_range_high is None else choice.clip_range_high


SURROGATES: Mapping[str, Surrogate] = {"clipped": clipped, "weighted": weighted, "gated": gated}
