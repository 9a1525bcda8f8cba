"""The arithmetic of comparing completions with their group.

Shape suffixes: P prompts of a step, G completions of each. A reward of NaN is a completion that was not scored.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lorarl_trainer.samples.arrays import Floats, Rewards
from lorarl_trainer.samples.rounding import differ

EPSILON = 1e-6
"""Added to a standard deviation before it divides."""


def with_signal(rewards_P_G: Rewards) -> npt.NDArray[np.bool_]:
    """Return which groups have completions with different rewards, [P]. The others train nothing."""
    return differ(np.fmax.reduce(rewards_P_G, axis=1), np.fmin.reduce(rewards_P_G, axis=1))  # these ignore NaN


def unused_signal(rewards_P_G: Rewards, advantages_S: Sequence[float | Floats], reason: str) -> str | None:
    """Return a warning if there are groups with signal whose advantages are all 0, with the algorithm's reason for it.

    `advantages_S` are of the samples, one for all tokens of a sample or one of each.
    """
    signal_P = with_signal(rewards_P_G)
    trains_P = np.array([np.any(one) for one in advantages_S]).reshape(rewards_P_G.shape).any(axis=1)
    unused = int((signal_P & ~trains_P).sum())
    if not unused:
        return None
    return f"{unused} of {int(signal_P.sum())} groups with different rewards train nothing{reason}."


def mean_and_std(rewards_P_G: Rewards) -> tuple[Rewards, Rewards]:
    """Return each group's mean reward and the standard deviation of a sample, [P, 1] each; NaN if there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # groups without two scored completions
        mean_P_1 = np.nanmean(rewards_P_G, axis=1, keepdims=True)
        deviation_P_1 = np.nanstd(rewards_P_G, axis=1, ddof=1, keepdims=True)
    return mean_P_1, deviation_P_1


def comparable(rewards_P_G: Rewards, advantages_P_G: Rewards) -> Floats:
    """Return the advantages, [P, G], with 0 for groups without signal, and for completions that were not scored.

    The mean of equal rewards is rounded: without this, its error would be an advantage, and might be divided by itself.
    """
    signal_P_1 = with_signal(rewards_P_G)[:, np.newaxis]
    return np.nan_to_num(np.where(signal_P_1, advantages_P_G, 0.0)).astype(np.float32)


def whole_step(rewards_P_G: Rewards) -> Rewards:
    """Return all rewards of a step as one group, [1, P * G]."""
    return rewards_P_G.reshape(1, -1)
