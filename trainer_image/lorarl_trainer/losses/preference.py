"""The loss of preference pairs (DPO, arXiv:2305.18290, equation 7), with label smoothing.

Shape suffixes: N response tokens of a micro-batch, S its samples, P its pairs. Samples 2p and 2p + 1 are pair p.
"""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid

from lorarl_trainer.losses.base import LossInputs
from lorarl_trainer.samples.requests import LossChoice


def preference(inputs: LossInputs, choice: LossChoice) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """See `base.Loss`. Losses and columns are of pairs, [P] each.

    The implicit reward of an answer is r = beta (log p(policy) - log p(reference)), with the log-probabilities of the
    whole answer in nats. With m = r(chosen) - r(rejected) and label smoothing e, the loss of a pair is

        -(1 - e) log sigmoid(m) - e log sigmoid(-m).

    With e above 0 it is conservative DPO (E. Mitchell, "A note on DPO with noisy preferences", 2023).

        preference/accuracy: share of pairs whose chosen answer has the larger implicit reward; equal ones count half.
        preference/margin: r(chosen) - r(rejected), mean over pairs.
        preference/chosen, preference/rejected: the implicit rewards, mean over pairs.
    """
    assert inputs.base is not None and inputs.sequences is not None, "an implicit reward needs a reference, and answers"

    def rewards(logprobs_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert inputs.base is not None and inputs.sequences is not None
        rewards_P_2 = choice.beta * inputs.sequences.totals(logprobs_N - inputs.base).reshape(-1, 2)
        return rewards_P_2[:, 0], rewards_P_2[:, 1]

    chosen_P, rejected_P = rewards(inputs.logprobs)
    margin_P = chosen_P - rejected_P
    loss_P = -(1 - choice.label_smoothing) * logsigmoid(margin_P) - choice.label_smoothing * logsigmoid(-margin_P)
    chosen_P, rejected_P = rewards(inputs.measured)
    margin_P = chosen_P - rejected_P
    return loss_P, {
        "preference/accuracy": (margin_P > 0).float() + 0.5 * (margin_P == 0),
        "preference/margin": margin_P,
        "preference/chosen": chosen_P,
        "preference/rejected": rejected_P,
    }
