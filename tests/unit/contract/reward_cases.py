"""Cases of the rules for rewards."""

from __future__ import annotations

from unit.contract.manifests import SFT, TWO, Case

REWARD_CASES = [
    Case(
        "one reward, not two",
        {"spec.reward": {"type": "exact", "function": "m:f"}},
        {"spec.reward": {"function": "m:f", "timeoutSeconds": 3}},
        "spec.reward.type",
        "Set type",
    ),
    Case(
        "one reward, not none",
        {"spec.reward": {}},
        {"spec.reward": {"type": "math_verify", "timeoutSeconds": 3}},
        "spec.reward.type",
        "Set type",
    ),
    Case(
        "pattern only with regex",
        {"spec.reward": {"type": "exact", "pattern": "x"}},
        {"spec.reward": {"type": "regex", "pattern": "x"}},
        "spec.reward.pattern",
        "Remove pattern",
    ),
    Case(
        "pattern not with a function",
        {"spec.reward": {"function": "m:f", "pattern": "x"}},
        {"spec.reward": {"function": "m:f"}},
        "spec.reward.pattern",
        "Remove pattern",
    ),
    Case(
        "regex needs a pattern",
        {"spec.reward": {"type": "regex"}},
        {"spec.reward": {"type": "numeric"}},
        "spec.reward.pattern",
        "Add a pattern",
    ),
    Case(
        "tolerance only with numeric",
        {"spec.reward": {"type": "exact", "tolerance": 0.1}},
        {"spec.reward": {"type": "numeric", "tolerance": 0.1}},
        "spec.reward.tolerance",
        "Remove tolerance",
    ),
    Case("grpo needs a reward", {"spec.reward": None}, SFT, "spec.reward", "Add a reward"),
    Case(
        "sft has no reward",
        {"spec.algorithm.type": "sft"},
        {"spec.algorithm.type": "grpo"},
        "spec.reward",
        "Remove reward",
    ),
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
