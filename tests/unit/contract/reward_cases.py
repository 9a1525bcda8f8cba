"""Cases of the rules for several rewards."""

from __future__ import annotations

from unit.contract.manifests import SFT, TWO, Case

REWARD_CASES = [
    Case(
        "sft has no rewards",
        SFT | {"spec.rewards": TWO},
        {"spec.reward": None, "spec.rewards": TWO},
        "spec.rewards",
        "Remove rewards, or set",
    ),
    Case(
        "a reward or rewards",
        {"spec.rewards": TWO},
        {"spec.reward": None, "spec.rewards": TWO},
        "spec.rewards",
        "Move reward into the list",
    ),
    Case(
        "rewards have names of their own",
        {"spec.reward": None, "spec.rewards": [TWO[0], TWO[0]]},
        {"spec.reward": None, "spec.rewards": [TWO[0], TWO[0] | {"name": "again"}]},
        "spec.rewards",
        "Rename a reward",
    ),
    Case(
        "rewards that count",
        {"spec.reward": None, "spec.rewards": [TWO[0] | {"weight": 0.0}]},
        {"spec.reward": None, "spec.rewards": [TWO[0] | {"weight": -1.0}]},
        "spec.rewards",
        "Set the weight of a reward",
    ),
    Case(
        "one of several rewards, not none",
        {"spec.reward": None, "spec.rewards": [{"name": "a"}]},
        {"spec.reward": None, "spec.rewards": [{"name": "a", "function": "m:f"}]},
        "spec.rewards[0].type",
        "Set type",
    ),
]
