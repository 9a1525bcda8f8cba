"""The rules for answers that no step waits for."""

from __future__ import annotations

from collections.abc import Iterator

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.algorithm_types import WITHOUT_REWARD, is_one_of, listed

TRAINS_WITHOUT_REWARD = is_one_of("self.algorithm.type", WITHOUT_REWARD)


def partial_rules() -> Iterator[Rule]:
    """Yield what a job with `rollout.partial` must have beside it, and must not."""
    unless = "!has(self.rollout.partial)"
    yield Rule(
        "rollout.partial",
        f"{unless} || has(self.algorithm.correction)",
        "have algorithm.correction beside it, since some tokens are by earlier adapters",
        "Add algorithm.correction, for example {preset: decoupled_token_is}.",
    )
    yield Rule(
        "rollout.partial",
        f"{unless} || !({TRAINS_WITHOUT_REWARD})",
        f"be absent if algorithm.type is {listed(WITHOUT_REWARD, 'or')}, whose samples are no groups of rollouts",
        "Remove rollout.partial.",
    )
    yield Rule(
        "rollout.partial",
        f"{unless} || (self.algorithm.type == 'dapo' ? has(self.algorithm.dapo) && self.algorithm.dapo.maxRefills == 0 "
        ": !has(self.algorithm.maxRefills) || self.algorithm.maxRefills == 0)",
        "have no refills beside it: a step's groups are those that have ended",
        "Set algorithm.dapo.maxRefills: 0, or for other types remove algorithm.maxRefills.",
    )
    yield Rule(
        "rollout.partial.tokensPerRound",
        f"{unless} || !has(self.rollout.partial.tokensPerRound) || "
        "self.rollout.partial.tokensPerRound < self.rollout.maxResponseTokens",
        "be less than rollout.maxResponseTokens, or all answers end in one round",
        "Remove tokensPerRound: the default is an eighth of maxResponseTokens.",
    )
    yield Rule(
        "rollout.partial",
        f"{unless} || !has(self.data.curriculum)",
        "be absent with data.curriculum, which learns from all groups of a step's rows",
        "Remove one of the two.",
    )
    yield Rule(
        "rollout.partial",
        f"{unless} || size(self.rollout.stop) == 0",
        "be absent with rollout.stop: a text may begin in one round and end in the next",
        "Remove rollout.stop, or rollout.partial.",
    )
