"""The rules for steps with tokens of earlier adapters: answers that no step waits for, and steps generated ahead."""

from __future__ import annotations

from collections.abc import Iterator

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.algorithm_types import WITHOUT_REWARD, is_one_of, listed

TRAINS_WITHOUT_REWARD = is_one_of("self.algorithm.type", WITHOUT_REWARD)


def _off_policy(field: str, unless: str, unset: str, groups: str) -> Iterator[Rule]:
    """Yield what a job needs, and must not have, whose steps have tokens of earlier adapters.

    Args:
        field: what lets them have such tokens.
        unless: a condition in CEL: the job does not set it.
        unset: what the field must do where it cannot be used.
        groups: of what the step's groups are, as the reason against refills.
    """
    yield Rule(
        field,
        f"{unless} || has(self.algorithm.correction)",
        "have algorithm.correction beside it, since some tokens are by earlier adapters",
        "Add algorithm.correction, for example {preset: decoupled_token_is}.",
    )
    yield Rule(
        field,
        f"{unless} || !({TRAINS_WITHOUT_REWARD})",
        f"{unset} if algorithm.type is {listed(WITHOUT_REWARD, 'or')}, whose samples are no groups of rollouts",
        f"Remove {field}.",
    )
    yield Rule(
        field,
        f"{unless} || (self.algorithm.type == 'dapo' ? has(self.algorithm.dapo) && self.algorithm.dapo.maxRefills == 0 "
        ": !has(self.algorithm.maxRefills) || self.algorithm.maxRefills == 0)",
        f"have no refills beside it: a step's groups are {groups}",
        "Set algorithm.dapo.maxRefills: 0, or for other types remove algorithm.maxRefills.",
    )
    yield Rule(
        field,
        f"{unless} || !has(self.data.curriculum)",
        f"{unset} with data.curriculum, which learns from all groups of a step's rows",
        "Remove one of the two.",
    )


def off_policy_rules() -> Iterator[Rule]:
    """Yield what jobs must have beside such steps, and must not."""
    yield from _partial()
    yield from _staleness()


def _partial() -> Iterator[Rule]:
    """Yield what a job with `rollout.partial` must have beside it, and must not."""
    unless = "!has(self.rollout.partial)"
    yield from _off_policy("rollout.partial", unless, "be absent", "those that have ended")
    yield Rule(
        "rollout.partial.tokensPerRound",
        f"{unless} || !has(self.rollout.partial.tokensPerRound) || "
        "self.rollout.partial.tokensPerRound < self.rollout.maxResponseTokens",
        "be less than rollout.maxResponseTokens, or all answers end in one round",
        "Remove tokensPerRound: the default is an eighth of maxResponseTokens.",
    )
    yield Rule(
        "rollout.partial",
        f"{unless} || size(self.rollout.stop) == 0",
        "be absent with rollout.stop: a text may begin in one round and end in the next",
        "Remove rollout.stop, or rollout.partial.",
    )


def _staleness() -> Iterator[Rule]:
    """Yield what a job with `rollout.maxStaleness` above 0 must have beside it, and must not."""
    field, unless, unset = "rollout.maxStaleness", "self.rollout.maxStaleness == 0", "be 0, the default,"
    yield from _off_policy(field, unless, unset, "known before it is generated ahead")
    yield Rule(
        field,
        f"{unless} || !has(self.algorithm.kl) || !has(self.algorithm.kl.target)",
        f"{unset} with algorithm.kl.target, which needs samples of the newest adapter to measure the divergence",
        "Remove algorithm.kl.target, or rollout.maxStaleness.",
    )
