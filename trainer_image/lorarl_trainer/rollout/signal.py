"""Notices that a run has nothing to learn from: no group with different rewards for several steps, and why."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lorarl_api.v1alpha1 import RolloutSpec
from lorarl_trainer.algorithms.groups import with_signal
from lorarl_trainer.samples.arrays import Rewards
from lorarl_trainer.samples.rounding import differ

PATIENCE = 3
"""Steps without signal before a warning. One or two may be chance where prompts are few and rewards rare; a first try
often has only a few steps, and should still be warned."""
LOW_TEMPERATURE = 0.3
"""Below this, equal completions are the temperature's doing rather than the model's certainty."""


OFTEN_CUT_OFF = 0.25
"""Share of a first step's completions that are cut off from which on a run says so."""


class SignalWatch:
    """Counts the steps in a row in which no group had signal."""

    def __init__(self, rollout: RolloutSpec) -> None:
        """Keep the settings that a warning names."""
        self._rollout = rollout
        self._steps = 0
        self._seen: set[float] = set()
        self._first = True

    def at_first(self, truncated_share: float, *, episodes: bool = False) -> str | None:
        """Return what it teaches that so many of the first step's completions were cut off; None if few were, or later.

        A reward sees the beginning of such a completion. So the model learns to write less, and leaves out what comes
        last. With `episodes`, it is they that were cut off.
        """
        first, self._first = self._first, False
        if not first or truncated_share < OFTEN_CUT_OFF:
            return None
        limit = self._rollout.max_response_tokens
        if episodes:
            return (
                f"{truncated_share:.0%} of the first step's episodes were ended by a limit of tokens, and have the "
                "rewards that they got until then. If the model needs the room, raise spec.environment.maxTurnTokens, "
                f"which limits a turn, or spec.rollout.maxResponseTokens ({limit}), which limits all turns together"
            )
        return (
            f"{truncated_share:.0%} of the first step's completions were cut off at spec.rollout.maxResponseTokens "
            f"({limit}) and are scored as they are. So the model is taught to end sooner, also by leaving parts out. "
            f"If its answers need the room, set it to {2 * limit}"
        )

    def after_step(self, rewards_P_G: Rewards, texts: Sequence[str], truncated_share: float) -> tuple[str, str] | None:
        """Count a step.

        Args:
            rewards_P_G: NaN where a completion could not be scored.
            texts: the completions, group by group.
            truncated_share: of them, 0 to 1.

        Returns:
            The cause in a word and a warning, when the step is the last of PATIENCE; otherwise None.
        """
        if with_signal(rewards_P_G).any():
            self._steps = 0
            self._seen.clear()
            return None
        self._steps += 1
        self._seen |= set(rewards_P_G[~np.isnan(rewards_P_G)].tolist())
        if self._steps != PATIENCE:
            return None
        repeated = _repeated(texts, rewards_P_G.shape[1])
        cause, text = likely_cause(rewards_P_G, self._seen, repeated, truncated_share, self._rollout)
        return cause, f"no group had signal in {PATIENCE} steps in a row, so the model learned nothing: {text}"


def likely_cause(
    rewards_P_G: Rewards, seen: set[float], repeated: bool, truncated_share: float, rollout: RolloutSpec
) -> tuple[str, str]:
    """Return why all completions of each group have the same reward, in a word and as a sentence with a fix.

    Args:
        rewards_P_G: of the newest step.
        seen: all rewards of the steps without signal.
        repeated: whether the completions of each group are the same text.
        truncated_share: of the newest step's completions, 0 to 1.
        rollout: its temperature and its limit of tokens.
    """
    if not (np.sum(~np.isnan(rewards_P_G), axis=1) > 1).any():
        return "unscored", (
            "no group has two completions that could be scored. Fix the reward; the warnings above show why it fails."
        )
    if repeated and rollout.temperature < LOW_TEMPERATURE:
        return "temperature", (
            "the completions of each prompt are the same text. "
            f"Raise spec.rollout.temperature ({rollout.temperature:g}), for example to 1."
        )
    highest = max(seen)
    constant = not differ(highest, min(seen))
    zero = constant and not differ(highest, 0.0)
    if zero and truncated_share > 0.5:
        return "truncated", (
            f"every reward is 0, and {truncated_share:.0%} of the completions were cut off at "
            f"spec.rollout.maxResponseTokens ({rollout.max_response_tokens}). Raise it, or ask for shorter answers."
        )
    if zero:
        return "zero", (
            "every reward is 0. Either no completion earns it, or the reward does not recognise those that should. "
            "Look at the completions in samples.jsonl."
        )
    if constant and not differ(highest, 1.0):
        return "one", (
            "every reward is 1. Either these prompts are learned or too easy, or the reward accepts everything. "
            "Look at the completions in samples.jsonl."
        )
    if constant:
        return "constant", (
            f"every reward is {highest:g}. The reward seems to ignore the completion. Check what it returns."
        )
    if repeated:
        return "certain", "the completions of each prompt are the same text. The model is certain of its answers."
    return "prompt", (
        "the rewards differ between prompts, but never between the completions of one prompt. "
        "The reward seems to look only at the prompt or the row."
    )


def _repeated(texts: Sequence[str], group_size: int) -> bool:
    groups = (texts[start : start + group_size] for start in range(0, len(texts), group_size))
    return all(len(set(group)) == 1 for group in groups)
