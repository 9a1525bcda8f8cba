"""The losses alone: their values, their gradients, and the columns that they name."""

from __future__ import annotations

import math
from typing import get_args, get_type_hints

import pytest
import torch

from lorarl_trainer.losses.base import LossInputs
from lorarl_trainer.losses.policy_gradient import k3
from lorarl_trainer.losses.registry import LOSSES
from lorarl_trainer.samples.requests import LOGPROB_DIFFERENCE, LOSS_KINDS, LossChoice

PPO = LossChoice("policy_gradient", clip_range=0.2)


def inputs(tokens: int, *, on_policy: bool = True, base: bool = False) -> LossInputs:
    stream = torch.Generator().manual_seed(0)
    logprobs, rollout, advantages, of_base = (torch.randn(tokens, generator=stream) for _ in range(4))
    trained = logprobs.requires_grad_()
    return LossInputs(trained, logprobs.detach(), rollout, advantages, of_base if base else None, on_policy)


def test_on_policy_the_gradient_is_that_of_plain_policy_gradient() -> None:
    given = inputs(5)
    loss, columns = LOSSES["policy_gradient"](given, PPO)
    torch.testing.assert_close(loss, -given.advantages)
    loss.sum().backward()
    assert given.logprobs.grad is not None
    torch.testing.assert_close(given.logprobs.grad, -given.advantages)
    torch.testing.assert_close(columns[LOGPROB_DIFFERENCE], (given.measured - given.rollout).abs())
    assert not columns["clipped_share"].any()


def test_off_policy_the_ratio_to_the_rollout_is_clipped() -> None:
    given = inputs(50, on_policy=False)
    loss, columns = LOSSES["policy_gradient"](given, PPO)
    ratio = (given.measured - given.rollout).exp()
    expected = torch.minimum(ratio * given.advantages, ratio.clamp(0.8, 1.2) * given.advantages)
    torch.testing.assert_close(loss.detach(), -expected)
    above, below = (ratio > 1.2) & (given.advantages > 0), (ratio < 0.8) & (given.advantages < 0)
    assert above.any() and below.any()
    torch.testing.assert_close(columns["clipped_share"], (above | below).float())
    assert LOGPROB_DIFFERENCE not in columns, "off-policy samples are expected to differ"


def test_the_clipped_share_counts_tokens_without_a_gradient() -> None:
    """A bad completion that became likelier, or a good one that became less likely, still pulls the policy back."""
    given = inputs(200, on_policy=False)
    loss, columns = LOSSES["policy_gradient"](given, PPO)
    loss.sum().backward()
    assert given.logprobs.grad is not None
    outside = ((given.measured - given.rollout).exp() - 1).abs() > 0.2
    pulling = given.logprobs.grad != 0
    assert (outside & pulling).any(), "the scenario needs ratios outside of the range that are not clipped"
    torch.testing.assert_close(columns["clipped_share"], (~pulling).float())


def test_a_kl_penalty_is_added_and_reported() -> None:
    given = inputs(5, base=True)
    choice = LossChoice("policy_gradient", 0.2, kl_coefficient=0.5)
    loss, columns = LOSSES["policy_gradient"](given, choice)
    torch.testing.assert_close(loss.detach(), -given.advantages + 0.5 * k3(given.measured, given.base))
    torch.testing.assert_close(columns["kl"], k3(given.measured, given.base))


def test_a_token_that_the_policy_hardly_draws_does_not_rule_the_penalty() -> None:
    logprobs = torch.tensor([1e-6, 1e-3, 0.5, 0.9]).log().requires_grad_()
    estimate = k3(logprobs, torch.tensor([0.5, 0.1, 0.5, 1e-9]).log())
    estimate.sum().backward()
    torch.testing.assert_close(estimate[1:].detach(), torch.tensor([99 - math.log(100), 0, math.log(9e8) - 1]))
    assert logprobs.grad is not None and logprobs.grad.abs().max() < 150 and estimate[0] < 150


def test_cross_entropy_is_minus_the_log_probability() -> None:
    given = inputs(5)
    loss, columns = LOSSES["cross_entropy"](given, LossChoice("cross_entropy"))
    torch.testing.assert_close(loss, -given.logprobs)
    assert columns == {}


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("base", [True, False])
def test_a_worker_without_samples_names_the_same_columns(on_policy: bool, base: bool) -> None:
    names = [set(LOSSES["policy_gradient"](inputs(n, on_policy=on_policy, base=base), PPO)[1]) for n in (0, 7)]
    assert names[0] == names[1]


def test_weights_of_cross_entropy_are_the_advantages_if_asked_for() -> None:
    given = inputs(5)
    weighed, _ = LOSSES["cross_entropy"](given, LossChoice("cross_entropy", weighs_tokens=True))
    torch.testing.assert_close(weighed, -given.logprobs * given.advantages)


def test_a_least_weight_cuts_ratios_from_below() -> None:
    given = inputs(50, on_policy=False)
    choice = LossChoice("policy_gradient", surrogate="weighted", clip_range_high=0.2, least_weight=0.8)
    loss, columns = LOSSES["policy_gradient"](given, choice)
    assert given.rollout is not None
    ratio = (given.measured - given.rollout).exp()
    torch.testing.assert_close(loss, -ratio.clamp(0.8, 1.2) * given.advantages * given.logprobs)
    assert columns["clipped_share"].tolist() == ((ratio < 0.8) | (ratio > 1.2)).float().tolist()


def test_every_loss_has_its_kind() -> None:
    assert LOSS_KINDS.keys() == LOSSES.keys() == set(get_args(get_type_hints(LossChoice)["kind"]))
