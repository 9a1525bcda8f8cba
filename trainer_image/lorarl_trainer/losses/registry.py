"""The losses by the name that an algorithm chooses one with."""

from __future__ import annotations

from collections.abc import Mapping

from lorarl_trainer.losses.base import Loss
from lorarl_trainer.losses.cross_entropy import cross_entropy
from lorarl_trainer.losses.policy_gradient import policy_gradient

LOSSES: Mapping[str, Loss] = {"policy_gradient": policy_gradient, "cross_entropy": cross_entropy}
