"""The loss of a critic: the squared error of its values, clipped as PPO clips its ratios.

Shape suffix: N response tokens of a micro-batch, sample by sample.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch


def value_loss(
    values_N: torch.Tensor, before_N: torch.Tensor, returns_N: torch.Tensor, clip_range: float
) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
    """Return each token's loss and columns of metrics, [N] each.

    With the critic's value V, its value B at the beginning of the step, and the return R, the loss is

        max((V - R)^2, (B + clip(V - B, -c, c) - R)^2) / 2

    It is that of OpenAI's PPO (arXiv:1707.06347; L. Engstrom et al., arXiv:2005.12729, section 3). A value that has
    moved by more than c towards its return, and beyond, has no gradient.

        critic/loss: this.
        critic/clipped_share: share of tokens whose gradient is zero because of it, 0 to 1.

    Args:
        values_N: with a gradient.
        before_N: without one, as the returns.
        returns_N: what the values are to be.
        clip_range: c.
    """
    moved_N = values_N - before_N
    held_N = before_N + moved_N.clamp(-clip_range, clip_range)
    plain_N, held_N = (values_N - returns_N).square(), (held_N - returns_N).square()
    loss_N = torch.maximum(plain_N, held_N) / 2
    clipped_N = (moved_N.abs() > clip_range) & (held_N > plain_N)  # within the range both are equal but for rounding
    return loss_N, {"critic/loss": loss_N.detach(), "critic/clipped_share": clipped_N.float()}
