"""The losses by the name that an algorithm chooses one with, and how a backend computes one."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lorarl_trainer.losses.base import Loss, LossInputs
from lorarl_trainer.losses.correction import WEIGHT, WEIGHT_SQUARED, effective_share
from lorarl_trainer.losses.cross_entropy import cross_entropy
from lorarl_trainer.losses.fresh import over_fresh
from lorarl_trainer.losses.policy_gradient import policy_gradient
from lorarl_trainer.losses.preference import preference
from lorarl_trainer.samples.requests import LossChoice

LOSSES: Mapping[str, Loss] = {
    "policy_gradient": policy_gradient,
    "cross_entropy": cross_entropy,
    "preference": preference,
}


def compute_loss(inputs: LossInputs, choice: LossChoice) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
    """Return each token's share of the loss, [N], and columns of metrics, [N] each; of preferences, each pair's, [P].

    The loss of an update is the sum of all shares over `choice.normalizer(...)`, on all workers. Metrics are means over
    all tokens, or pairs.
    """
    loss_N, columns = LOSSES[choice.kind](inputs, choice)
    if choice.aggregation == "sequence_mean":
        assert inputs.sequences is not None, "a mean over sequences needs to know them"
        loss_N = loss_N / inputs.sequences.episode_lengths_per_token
    return loss_N, columns


def finished(means: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of an update, given the means of all columns: some are functions of two."""
    metrics = over_fresh(means)
    if WEIGHT_SQUARED in metrics:
        share = effective_share(metrics[WEIGHT], metrics.pop(WEIGHT_SQUARED))
        metrics["correction/effective_share"] = share
    return metrics
