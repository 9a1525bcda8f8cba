"""Group-relative policy optimisation (GRPO, arXiv:2402.03300): a completion is compared with its own group."""

from __future__ import annotations

import warnings

import numpy as np

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_trainer.algorithms.base import Floats, Rewards
from lorarl_trainer.algorithms.groups import with_signal
from lorarl_trainer.samples.types import LossChoice

_EPSILON = 1e-6


class Grpo:
    """The baseline is the group's mean reward, the scale its standard deviation; there is no critic."""

    by_group = True

    def __init__(self, spec: AlgorithmSpec) -> None:
        """Take the group size, clip range, KL coefficient and number of updates per step from the manifest."""
        self.group_size = spec.effective_group_size
        self.updates_per_step = spec.effective_updates_per_step
        self.loss = LossChoice("policy_gradient", spec.effective_clip_range, spec.effective_kl_coefficient)

    def advantages(self, rewards_P_G: Rewards) -> Floats:
        """Return (r - mean) / (std + 1e-6) within each group, [P, G].

        The result is 0 where nothing can be compared, or where all rewards are equal.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # groups without two scored completions: handled below
            mean_P_1 = np.nanmean(rewards_P_G, axis=1, keepdims=True)
            deviation_P_1 = np.nanstd(rewards_P_G, axis=1, ddof=1, keepdims=True)
        # The mean of equal rewards is rounded: its error would be divided by itself.
        signal_P_1 = with_signal(rewards_P_G)[:, np.newaxis]
        advantages_P_G = np.where(signal_P_1, (rewards_P_G - mean_P_1) / (deviation_P_1 + _EPSILON), 0.0)
        return np.nan_to_num(advantages_P_G).astype(np.float32)
