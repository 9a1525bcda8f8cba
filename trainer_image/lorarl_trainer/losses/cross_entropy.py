"""Cross entropy, for supervised fine-tuning: -log p of the data's own tokens."""

from __future__ import annotations

import torch

from lorarl_trainer.losses.base import LossInputs
from lorarl_trainer.samples.requests import LossChoice


def cross_entropy(inputs: LossInputs, choice: LossChoice) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """See `base.Loss`. It has no metrics besides the loss."""
    loss_N = -inputs.logprobs
    return (loss_N * inputs.advantages if choice.weighs_tokens else loss_N), {}
