"""Truncated and masked importance sampling with the engine's own log-probabilities as the behaviour policy.

Shape suffix: N response tokens of a micro-batch.
"""

from __future__ import annotations

import torch

from lorarl_trainer.losses.sequences import Sequences
from lorarl_trainer.samples.correction import Correction

_MOST_LOG_RATIO = 20.0
"""Logarithms of ratios are cut at this, so that no product of many is infinite."""
WEIGHT, WEIGHT_SQUARED = "correction/weight", "correction/weight_squared"


def importance_weights(
    log_ratio_N: torch.Tensor, correction: Correction, sequences: Sequences | None
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return what multiplies each token's loss, and columns of metrics, [N] each.

    Truncated weights are min(ratio, most) (Yao et al., "Your efficient RL framework secretly brings you off-policy RL
    training", 2025). A mask is 0 for ratios out of its range (IcePop, 2025; arXiv:2510.18855), else 1. A masked token
    still counts in the loss's divisor.

        correction/ratio: trainer's over engine's probability of a token.
        correction/weight: what multiplies the loss, 0 where it is masked.
        correction/clipped_share: share of tokens whose weight was cut, 0 to 1.
        correction/masked_share: share of tokens that do not train, 0 to 1.
        correction/effective_share: effective sample size over the number of tokens, 0 to 1, see `effective_share`.

    Args:
        log_ratio_N: log of the trainer's over the engine's probability, without a gradient.
        correction: which of both.
        sequences: needed if the correction is by sequence.
    """
    weight_N = torch.ones_like(log_ratio_N)
    clipped_N = masked_N = torch.zeros_like(log_ratio_N, dtype=torch.bool)
    if correction.weights is not None:
        ratio_N = _ratio(log_ratio_N, correction.weights, sequences)
        weight_N, clipped_N = ratio_N.clamp(max=correction.max_weight), ratio_N > correction.max_weight
    if correction.mask is not None:
        ratio_N = _ratio(log_ratio_N, correction.mask, sequences)
        masked_N = (ratio_N < correction.low) | (ratio_N > correction.high)
        weight_N = weight_N.masked_fill(masked_N, 0.0)
    return weight_N, {
        "correction/ratio": _ratio(log_ratio_N, "token", None),
        "correction/clipped_share": clipped_N.float(),
        "correction/masked_share": masked_N.float(),
        WEIGHT: weight_N,
        WEIGHT_SQUARED: weight_N.square(),
    }


def effective_share(weight: float, weight_squared: float) -> float:
    """Return Kish's effective sample size per token, (sum w)^2 / (N sum w^2), from the two means."""
    return weight**2 / weight_squared if weight_squared > 0 else 0.0


def _ratio(log_ratio_N: torch.Tensor, level: str, sequences: Sequences | None) -> torch.Tensor:
    if level == "token":
        return log_ratio_N.clamp(-_MOST_LOG_RATIO, _MOST_LOG_RATIO).exp()
    assert sequences is not None, "a ratio of sequences needs to know them"
    whole_N = sequences.means(log_ratio_N) if level == "geometric" else sequences.sums(log_ratio_N)
    return whole_N.clamp(-_MOST_LOG_RATIO, _MOST_LOG_RATIO).exp()
