"""What the policy-gradient algorithms share: the fields that all of them read."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Self

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_api.v1alpha1.algorithm_options import KlSpec
from lorarl_trainer.algorithms.base import RewardKl
from lorarl_trainer.samples.correction import Correction
from lorarl_trainer.samples.critic import CriticChoice
from lorarl_trainer.samples.requests import LossChoice


class PolicyGradient:
    """An algorithm on rewards. A subclass gives the advantages, and what its loss has besides the usual."""

    critic: CriticChoice | None = None
    no_advantages = ""

    def __init__(self, spec: AlgorithmSpec, max_response_tokens: int) -> None:
        """Take what the manifest says of all policy-gradient algorithms. A completion has at most so many tokens."""
        self.group_size = spec.effective_group_size
        self.updates_per_step = spec.effective_updates_per_step
        self.max_refills = spec.max_refills or 0
        kl, coefficient = spec.kl or KlSpec(), spec.effective_kl_coefficient
        in_reward = kl.placement == "reward"
        self.reward_kl = RewardKl(coefficient, kl.estimator or "k1") if in_reward else None
        self.loss = LossChoice(
            **{
                "kind": "policy_gradient",
                "clip_range": spec.effective_clip_range,
                "kl_coefficient": 0.0 if in_reward else coefficient,
                "kl_estimator": kl.estimator or "k3",
                "aggregation": spec.effective_loss_aggregation,
                "constant": float(max_response_tokens),
                "correction": Correction.of(spec.correction) if spec.correction else None,
                **self.loss_options(spec),
            }
        )

    def with_kl_coefficient(self, coefficient: float) -> Self:
        """Return the algorithm with another weight of its KL penalty, wherever that is."""
        changed = copy.copy(self)
        if changed.reward_kl is None:
            changed.loss = replace(self.loss, kl_coefficient=coefficient)
        else:
            changed.reward_kl = replace(changed.reward_kl, coefficient=coefficient)
        return changed

    def loss_options(self, spec: AlgorithmSpec) -> dict[str, Any]:
        """Return the fields of `LossChoice` that are special to the algorithm."""
        return {}
