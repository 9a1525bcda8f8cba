"""Dynamic sampling (DAPO, arXiv:2503.14476): groups without signal are replaced by those of further prompts.

Shape suffixes: P prompts of a step, G completions per prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lorarl_trainer.algorithms.groups import with_signal
from lorarl_trainer.samples.arrays import Rewards


def prompts_to_add(rewards_P_G: Rewards, wanted: int) -> int:
    """Return how many prompts to generate for next, given all groups of the step so far; 0 if enough have signal.

    They are so many that, with the share of signal so far, the missing groups should come: at most `wanted`, and as
    many as that if no group had signal.
    """
    found = int(with_signal(rewards_P_G).sum())
    if found >= wanted:
        return 0
    return min(wanted, math.ceil((wanted - found) * len(rewards_P_G) / found)) if found else wanted


def groups_to_train(rewards_P_G: Rewards, wanted: int) -> npt.NDArray[np.int64]:
    """Return the indices of the groups that a step trains, ascending, [wanted].

    The first ones with signal. If there are too few, the first ones without signal fill up: they train nothing.
    """
    signal_P = with_signal(rewards_P_G)
    first = np.argsort(~signal_P, kind="stable")[:wanted]
    return np.sort(first)


def indices_of(groups: Sequence[int] | npt.NDArray[np.int64], group_size: int) -> list[int]:
    """Return the indices of the groups' completions."""
    return [int(group) * group_size + member for group in groups for member in range(group_size)]
