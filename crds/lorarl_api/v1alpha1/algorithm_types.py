"""The algorithms: what each one is, and which of them share what. The contract and the documents are made from this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

AlgorithmType = Literal[
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "maxrl",
    "dapo",
    "gspo",
    "cispo",
    "sapo",
    "ppo",
    "distillation",
    "sft",
    "dpo",
]


@dataclass(frozen=True)
class About:
    """An algorithm in a line.

    Attributes:
        what: what is special about it, as a clause.
        when: when to use it.
        paper: its number at arXiv; empty if it is older.
    """

    what: str
    when: str
    paper: str = ""


ABOUT: Mapping[AlgorithmType, About] = {
    "grpo": About(
        "group-relative policy optimisation, with the loss averaged over tokens", "the first choice", "2402.03300"
    ),
    "dr_grpo": About(
        "without standard deviation and response length as divisors",
        "wrong answers grow longer, or prompts of extreme difficulty dominate",
        "2503.20783",
    ),
    "rloo": About(
        "each completion is compared with the mean of the others",
        "rewards of different scales mean something, such as points of a game",
        "2402.14740",
    ),
    "reinforce": About("plain policy gradient with the step's mean reward as baseline", "as a reference"),
    "reinforce_plus_plus": About(
        "advantages are normalised over the whole step",
        "there is one completion per prompt, or prompts are about equally hard",
        "2501.03262",
    ),
    "reinforce_plus_plus_baseline": About(
        "the group's mean is subtracted, then advantages are normalised over the step",
        "groups are small, so that their standard deviation is a poor estimate",
        "2501.03262",
    ),
    "maxrl": About(
        "maximum likelihood of success: rare successes weigh more",
        "rewards are 0 or 1, and most prompts are hard",
        "2602.02710",
    ),
    "dapo": About(
        "grpo with clip-higher, dynamic sampling and a penalty on overlong completions",
        "entropy collapses, few groups have signal, or completions reach the limit of tokens",
        "2503.14476",
    ),
    "gspo": About(
        "the ratio of whole completions is clipped",
        "a step has several updates, and completions are long",
        "2507.18071",
    ),
    "cispo": About(
        "truncated importance weights in place of clipping: every token keeps its gradient",
        "a step has several updates, and rare tokens matter",
        "2506.13585",
    ),
    "sapo": About(
        "a soft gate in place of clipping", "a step has several updates, and clipping is too abrupt", "2511.20347"
    ),
    "ppo": About(
        "proximal policy optimisation with a critic, which is a second adapter on the same base",
        "there is one completion per prompt, or completions are long and their tokens differ in merit",
        "1707.06347",
    ),
    "distillation": About(
        "on-policy distillation: a teacher scores every token that the policy writes, and no reward is needed",
        "a better model, or an adapter of this one, can already do it",
        "2306.13649",
    ),
    "sft": About(
        "cross-entropy on the answers, with neither a reward nor rollouts", "there are examples to learn from"
    ),
    "dpo": About(
        "direct preference optimisation on pairs of a chosen and a rejected answer, with neither a reward nor rollouts",
        "people or judges have compared answers",
        "2305.18290",
    ),
}

CLIPPED = (
    *("grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "maxrl", "dapo"),
    *("ppo", "distillation"),
)
"""The types whose loss is PPO's clipped surrogate with `clipRange`."""
WITHOUT_GROUPS = ("reinforce", "reinforce_plus_plus", "ppo", "distillation")
"""The types that need not compare a completion with others of its prompt."""
REFILLED = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline", "maxrl", "gspo", "cispo", "sapo")
"""The types that compare a completion with its own group alone, and may replace groups without signal.

dapo does so too, by its own option."""
OPTION_GROUPS = ("grpo", "dapo", "gspo", "cispo", "sapo", "ppo", "distillation", "dpo")
"""The types with options, which are a group of the same name."""
FROM_DATA = ("sft", "dpo")
"""The types that learn from the data's own answers, and generate nothing to train on."""
WITHOUT_REWARD = (*FROM_DATA, "distillation")
"""The types that refuse a reward. Evaluations may have one."""

LossAggregation = Literal["token_mean", "sequence_mean", "constant"]
USUAL_AGGREGATION: Mapping[str, LossAggregation] = {
    "dr_grpo": "constant",
    "gspo": "sequence_mean",
    "sapo": "sequence_mean",
}
"""Aggregations by type; the others average over tokens."""


def description() -> str:
    """The description of `algorithm.type`."""
    papers = {name: f" (arXiv:{about.paper})" if about.paper else "" for name, about in ABOUT.items()}
    return " ".join(f"{name}: {about.what}{papers[name]}." for name, about in ABOUT.items())
