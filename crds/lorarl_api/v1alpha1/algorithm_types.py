"""The algorithms, one row each: what it is, and what the contract, the planner and the documents must know of it.

To add one, add its name to `AlgorithmType` and its row to `ABOUT`. The rules of `spec.algorithm` follow from the rows.
How it turns rewards into advantages is in `lorarl_trainer/algorithms/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from lorarl_api.v1alpha1.algorithm_options import (
    CispoSpec,
    DapoSpec,
    DistillationSpec,
    DpoSpec,
    GrpoSpec,
    GspoSpec,
    PpoSpec,
    SapoSpec,
)
from lorarl_api.v1alpha1.common import Model

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


LossAggregation = Literal["token_mean", "sequence_mean", "constant"]


@dataclass(frozen=True)
class About:
    """An algorithm's row.

    Attributes:
        what: what is special about it, as a clause.
        when: when to use it.
        paper: its number at arXiv; empty if it is older.
        learns_from: rewards of the policy's completions, a teacher's log-probabilities of them, or the data's own
            answers, alone or in pairs of a chosen and a rejected one.
        group_size: completions per prompt without `groupSize`.
        compares: whether it compares a completion with others of its prompt, so that a group needs two.
        clipped: whether its loss is PPO's clipped surrogate with `clipRange`.
        refills: whether `maxRefills` may replace groups without signal. dapo does so by its own option.
        critic: whether a critic is trained beside the policy.
        options: the model of its group of options, which has its name; None if it has none.
        aggregation: how the losses of tokens become one number without `lossAggregation`.
        without: fields of `spec.algorithm` that it refuses, each with the reason.
    """

    what: str
    when: str
    paper: str = ""
    learns_from: Literal["rewards", "teacher", "answers", "pairs"] = "rewards"
    group_size: int = 8
    compares: bool = True
    clipped: bool = True
    refills: bool = False
    critic: bool = False
    options: type[Model] | None = None
    aggregation: LossAggregation = "token_mean"
    without: Mapping[str, str] = field(default_factory=dict)

    @property
    def from_data(self) -> bool:
        """Whether it learns from the data's own answers, and generates nothing to train on."""
        return self.learns_from in ("answers", "pairs")


ABOUT: Mapping[AlgorithmType, About] = {
    "grpo": About(
        "group-relative policy optimisation, with the loss averaged over tokens",
        "the first choice",
        "2402.03300",
        refills=True,
        options=GrpoSpec,
    ),
    "dr_grpo": About(
        "without standard deviation and response length as divisors",
        "wrong answers grow longer, or prompts of extreme difficulty dominate",
        "2503.20783",
        refills=True,
        aggregation="constant",
    ),
    "rloo": About(
        "each completion is compared with the mean of the others",
        "rewards of different scales mean something, such as points of a game",
        "2402.14740",
        refills=True,
    ),
    "reinforce": About(
        "plain policy gradient with the step's mean reward as baseline",
        "as a reference",
        compares=False,
        clipped=False,
    ),
    "reinforce_plus_plus": About(
        "advantages are normalised over the whole step",
        "there is one completion per prompt, or prompts are about equally hard",
        "2501.03262",
        compares=False,
    ),
    "reinforce_plus_plus_baseline": About(
        "the group's mean is subtracted, then advantages are normalised over the step",
        "groups are small, so that their standard deviation is a poor estimate",
        "2501.03262",
        refills=True,
    ),
    "maxrl": About(
        "maximum likelihood of success: rare successes weigh more",
        "rewards are 0 or 1, and most prompts are hard",
        "2602.02710",
        refills=True,
    ),
    "dapo": About(
        "grpo with clip-higher, dynamic sampling and a penalty on overlong completions",
        "entropy collapses, few groups have signal, or completions reach the limit of tokens",
        "2503.14476",
        options=DapoSpec,
    ),
    "gspo": About(
        "the ratio of whole completions is clipped",
        "a step has several updates, and completions are long",
        "2507.18071",
        clipped=False,
        refills=True,
        options=GspoSpec,
        aggregation="sequence_mean",
    ),
    "cispo": About(
        "truncated importance weights in place of clipping: every token keeps its gradient",
        "a step has several updates, and rare tokens matter",
        "2506.13585",
        clipped=False,
        refills=True,
        options=CispoSpec,
    ),
    "sapo": About(
        "a soft gate in place of clipping",
        "a step has several updates, and clipping is too abrupt",
        "2511.20347",
        clipped=False,
        refills=True,
        options=SapoSpec,
        aggregation="sequence_mean",
    ),
    "ppo": About(
        "proximal policy optimisation with a critic, which is a second adapter on the same base",
        "there is one completion per prompt, or completions are long and their tokens differ in merit",
        "1707.06347",
        group_size=1,
        compares=False,
        critic=True,
        options=PpoSpec,
    ),
    "distillation": About(
        "on-policy distillation: a teacher scores every token that the policy writes, and no reward is needed",
        "a better model, or an adapter of this one, can already do it",
        "2306.13649",
        learns_from="teacher",
        group_size=1,
        compares=False,
        options=DistillationSpec,
    ),
    "sft": About(
        "cross-entropy on the answers, with neither a reward nor rollouts",
        "there are examples to learn from",
        learns_from="answers",
        group_size=1,
        compares=False,
        clipped=False,
        without={
            "groupSize": "sft has no groups",
            "clipRange": "sft has no probability ratio",
            "klCoefficient": "sft has no KL penalty",
            "updatesPerStep": "sft does one update per step",
            "lossAggregation": "sft averages over tokens",
            "correction": "sft samples nothing",
        },
    ),
    "dpo": About(
        "direct preference optimisation on pairs of a chosen and a rejected answer, with neither a reward nor rollouts",
        "people or judges have compared answers",
        "2305.18290",
        learns_from="pairs",
        group_size=2,
        clipped=False,
        options=DpoSpec,
        without=dict.fromkeys(
            ("groupSize", "klCoefficient", "updatesPerStep", "lossAggregation", "correction"),
            "dpo compares the two answers of a pair once per step",
        ),
    ),
}


def those(test: Callable[[About], bool]) -> tuple[str, ...]:
    """The types whose rows pass a test."""
    return tuple(name for name, about in ABOUT.items() if test(about))


def listed(names: Iterable[str], word: str = "and") -> str:
    """Names in a sentence: `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last


def is_one_of(path: str, names: Iterable[str]) -> str:
    """The condition, in CEL, that the type at this path is one of some."""
    return f"{path} in [{', '.join(map(repr, names))}]"


FROM_DATA = those(lambda about: about.from_data)
"""The types that learn from the data's own answers, and generate nothing to train on."""
WITHOUT_REWARD = those(lambda about: about.learns_from != "rewards")
"""The types that refuse a reward. Evaluations may have one."""
TAUGHT = those(lambda about: about.learns_from == "teacher")
FROM_ANSWERS = those(lambda about: about.learns_from == "answers")
FROM_PAIRS = those(lambda about: about.learns_from == "pairs")
OPTION_GROUPS = those(lambda about: about.options is not None)
"""The types with options, which are a group of the same name."""


def description() -> str:
    """The description of `algorithm.type`."""
    papers = {name: f" (arXiv:{about.paper})" if about.paper else "" for name, about in ABOUT.items()}
    return " ".join(f"{name}: {about.what}{papers[name]}." for name, about in ABOUT.items())
