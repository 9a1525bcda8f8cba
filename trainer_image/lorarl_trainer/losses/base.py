"""What a loss is to the trainer: log-probabilities in, one loss per token and columns of metrics out.

Shape suffix: N response tokens of a micro-batch, sample by sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from lorarl_trainer.losses.sequences import Sequences
from lorarl_trainer.samples.requests import LossChoice


@dataclass(frozen=True)
class LossInputs:
    """What a loss may look at, [N] each, in nats and float32.

    Attributes:
        logprobs: the policy's log-probabilities, with a gradient and with dropout.
        measured: the same without either.
        rollout: the engine's log-probabilities; None for samples that were not generated.
        base: the reference's log-probabilities; None unless the choice `needs_reference`.
        on_policy: the policy that is trained generated the samples.
        sequences: which tokens belong to one sample; None unless the choice is `by_sequence`.
        old: the policy's log-probabilities at the beginning of the step; None where they were not computed.
        fresh: whether a token is of a sample that the newest adapter generated alone, bool; None if all are.
    """

    logprobs: torch.Tensor
    measured: torch.Tensor
    rollout: torch.Tensor | None
    advantages: torch.Tensor
    base: torch.Tensor | None
    on_policy: bool
    sequences: Sequences | None = None
    old: torch.Tensor | None = None
    fresh: torch.Tensor | None = None


class Loss(Protocol):
    """One loss."""

    def __call__(self, inputs: LossInputs, choice: LossChoice) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return each token's loss, and by column of metrics.jsonl what to average over all tokens, [N] each.

        A loss of pairs (`preference`) returns each pair's.

        Which columns there are depends on `choice` and `inputs.on_policy` alone: all workers report the same ones.
        """
