"""What a loss is to the trainer: log-probabilities in, one loss per token and columns of metrics out.

Shape suffix: N response tokens of a micro-batch, sample by sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from lorarl_trainer.samples.types import LossChoice


@dataclass(frozen=True)
class LossInputs:
    """What a loss may look at, [N] each, in nats and float32.

    Attributes:
        logprobs: the policy's log-probabilities, with a gradient and with dropout.
        measured: the same without either.
        rollout: the engine's log-probabilities; None for samples that were not generated.
        advantages: the algorithm's.
        base: the base model's log-probabilities; None without a KL penalty.
        on_policy: the policy that is trained generated the samples.
    """

    logprobs: torch.Tensor
    measured: torch.Tensor
    rollout: torch.Tensor | None
    advantages: torch.Tensor
    base: torch.Tensor | None
    on_policy: bool


class Loss(Protocol):
    """One loss."""

    def __call__(self, inputs: LossInputs, choice: LossChoice) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return each token's loss, and by column of metrics.jsonl what to average over all tokens, [N] each.

        Which columns there are depends on `choice` and `inputs.on_policy` alone: all workers report the same ones.
        """
