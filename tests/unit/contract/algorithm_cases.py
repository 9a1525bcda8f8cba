"""Manifests that keep and break each rule between the fields of `spec.algorithm`."""

from __future__ import annotations

from typing import Any

from unit.contract.manifests import DPO, EVAL, SFT, TAUGHT, TEACHER, Case

GROUPS: dict[str, dict[str, Any]] = {
    "grpo": {"scaleByStd": False},
    "dapo": {"clipRangeHigh": 0.3},
    "gspo": {"clipRangeLow": 1e-3},
    "cispo": {"maxWeight": 4.0},
    "sapo": {"negativeTemperature": 1.1},
    "ppo": {"gaeLambda": 0.95},
    "distillation": {"adapter": "s3://team/teacher"},
    "dpo": {"beta": 0.2},
}
"""An option of each type that has options."""


def _not_for_sft(name: str, value: Any) -> Case:
    return Case(
        f"{name} not for sft",
        bad=SFT | {f"spec.algorithm.{name}": value},
        good={f"spec.algorithm.{name}": value},
        field=f"spec.algorithm.{name}",
        hint=f"Remove {name}, or set algorithm.type to grpo",
    )


def _not_for_dpo(name: str, value: Any) -> Case:
    return Case(
        f"{name} not for dpo",
        bad=DPO | {f"spec.algorithm.{name}": value},
        good={f"spec.algorithm.{name}": value},
        field=f"spec.algorithm.{name}",
        hint=f"Remove {name}. The options of dpo are beta and labelSmoothing",
    )


def _only_with_its_type(group: str, options: dict[str, Any]) -> Case:
    around = {"dpo": DPO, "distillation": TAUGHT}.get(group, {})
    return Case(
        f"{group} only with its type",
        bad={"spec.algorithm": {"type": "rloo", group: options}},
        good=around | {"spec.algorithm": {"type": group, group: options}},
        field=f"spec.algorithm.{group}",
        hint=f"Remove {group}, or set algorithm.type to {group}",
    )


def _pairs(name: str, path: str, source: dict[str, Any], around: dict[str, Any]) -> list[Case]:
    """Rows of a place with data sources: what only pairs have, and what has none."""
    several = path.endswith(("mixture", "evals"))

    def rows(fields: dict[str, Any]) -> dict[str, Any]:
        return around | {path: [source | fields] if several else source | fields}

    tasks = {key: value for key, value in source.items() if key != "uri"} | {"reasoningGym": {"task": "chain_sum"}}
    return [
        Case(
            f"columns of pairs in {name} only for dpo",
            rows({"rejectedField": "worse"}),
            DPO | rows({"rejectedField": "worse"}),
            path,
            "set algorithm.type to dpo",
        ),
        Case(
            f"conversations in {name} only for sft",
            rows({"messagesField": "chat"}),
            SFT | rows({"messagesField": "chat"}),
            path,
            "set algorithm.type to sft",
        ),
        Case(
            f"dpo without pairs in {name}",
            DPO | around | {path: [tasks] if several else tasks},
            around | {path: [tasks] if several else tasks},
            path,
            "with the columns prompt, chosen and rejected",
        ),
        Case(
            f"dpo reads no answerField in {name}",
            DPO | rows({"answerField": "chosen"}),
            rows({"answerField": "chosen"}),
            path if several else f"{path}.answerField",
            "Remove answerField. Name the columns of both answers in chosenField",
        ),
    ]


PAIRS = {"uri": "file:out/pairs.jsonl"}
PAIR_CASES = [
    *_pairs("train", "spec.data.train", PAIRS, {}),
    *_pairs("a mixture", "spec.data.mixture", PAIRS | {"name": "one"}, {"spec.data.train": None}),
    *_pairs("eval", "spec.data.eval", PAIRS, {}),
    *_pairs("evals", "spec.data.evals", PAIRS | {"name": "hard"}, {}),
    Case(
        "a mask needs tokens",
        SFT | {"spec.data.train.lossMaskField": "mask"},
        SFT | {"spec.data.train": PAIRS | {"tokensField": "ids", "lossMaskField": "mask"}},
        "spec.data.train.lossMaskField",
        "Name both columns",
    ),
    Case(
        "tokens have no system message beside them",
        SFT | {"spec.data.train": PAIRS | {"tokensField": "ids", "lossMaskField": "mask", "systemField": "system"}},
        SFT | {"spec.data.train": PAIRS | {"tokensField": "ids", "lossMaskField": "mask"}},
        "spec.data.train.tokensField",
        "Remove systemField",
    ),
    Case(
        "a row is messages or tokens",
        SFT | {"spec.data.train": PAIRS | {"tokensField": "ids", "lossMaskField": "mask", "messagesField": "chat"}},
        SFT | {"spec.data.train": PAIRS | {"messagesField": "chat"}},
        "spec.data.train.messagesField",
        "Remove one of the two",
    ),
    Case(
        "a reward scores completions of prompts",
        SFT | {"spec.data.evals": [PAIRS | {"name": "hard", "messagesField": "chat", "reward": {"type": "exact"}}]},
        SFT | {"spec.data.evals": [PAIRS | {"name": "hard", "reward": {"type": "exact"}}]},
        "spec.data.evals",
        "Remove them, or the reward",
    ),
    Case(
        "a reward of an evaluation beside dpo reads answers",
        DPO | {"spec.data.evals": [PAIRS | {"name": "hard", "answerField": "solution"}]},
        DPO | {"spec.data.evals": [PAIRS | {"name": "hard", "answerField": "solution", "reward": {"type": "exact"}}]},
        "spec.data.evals",
        "Remove answerField",
    ),
    Case(
        "two different columns of answers",
        DPO | {"spec.data.train.chosenField": "rejected"},
        DPO | {"spec.data.train.chosenField": "better"},
        "spec.data.train.rejectedField",
        "Name the columns",
    ),
    Case(
        "a micro-batch holds a pair",
        DPO | {"spec.trainer.tokensPerMicroBatch": 2000},
        {"spec.trainer.tokensPerMicroBatch": 2000},
        "spec.trainer.tokensPerMicroBatch",
        "Raise tokensPerMicroBatch",
    ),
    Case(
        "dpo has rollouts only for an evaluation with a reward",
        DPO | EVAL | {"spec.rollout.topP": 0.9},
        DPO
        | {
            "spec.rollout.topP": 0.9,
            "spec.data.evals": [PAIRS | {"name": "hard", "temperature": 1.0, "reward": {"type": "exact"}}],
        },
        "spec.rollout.topP",
        "Remove rollout.topP",
    ),
]

DISTILLATION = "spec.algorithm.distillation"
SCORED = PAIRS | {"name": "hard", "reward": {"type": "exact"}}
DISTILLATION_CASES = [
    Case("distillation needs a teacher", TAUGHT | {DISTILLATION: None}, TAUGHT, DISTILLATION, "Name the teacher"),
    Case(
        "one teacher",
        TAUGHT | {f"{DISTILLATION}.server": TEACHER},
        TAUGHT | {DISTILLATION: {"server": TEACHER}},
        f"{DISTILLATION}.adapter",
        "an adapter of the same base model, or a server",
    ),
    Case(
        "a teacher at a URL",
        TAUGHT | {DISTILLATION: {"server": TEACHER | {"url": "teacher:8000"}}},
        TAUGHT | {DISTILLATION: {"server": TEACHER}},
        f"{DISTILLATION}.server.url",
        "Write it as http://HOST:PORT/v1",
    ),
    Case(
        "no key in a teacher's URL",
        TAUGHT | {DISTILLATION: {"server": TEACHER | {"url": "http://me:secret@teacher/v1"}}},
        TAUGHT | {DISTILLATION: {"server": TEACHER | {"credentialsSecret": "teacher"}}},
        f"{DISTILLATION}.server.url",
        "store them in credentialsSecret",
    ),
    Case(
        "a teacher's adapter in a store",
        TAUGHT | {DISTILLATION: {"adapter": "team/teacher"}},
        TAUGHT | {DISTILLATION: {"adapter": "hf://team/teacher"}},
        f"{DISTILLATION}.adapter",
        "Write a name on the hub",
    ),
    Case(
        "no key in a teacher's folder",
        TAUGHT | {DISTILLATION: {"adapter": "s3://key:secret@team/teacher"}},
        TAUGHT,
        f"{DISTILLATION}.adapter",
        "store them in checkpoint.credentialsSecret",
    ),
    Case(
        "a teacher in place of a reward",
        TAUGHT | {"spec.reward": {"type": "exact"}},
        TAUGHT | {"spec.data.evals": [SCORED]},
        "spec.reward",
        "may have its own",
    ),
    Case(
        "an evaluation beside a teacher has a reward",
        TAUGHT | {"spec.data.evals": [PAIRS | {"name": "hard"}]},
        TAUGHT | {"spec.data.evals": [SCORED]},
        "spec.data.evals",
        "Add a reward to each",
    ),
    Case(
        "no evaluation is scored as distillation is",
        TAUGHT | EVAL,
        TAUGHT | {"spec.data.evals": [SCORED]},
        "spec.data.eval",
        "Use data.evals",
    ),
    Case(
        "a penalty beside a teacher is in the loss",
        TAUGHT | {"spec.algorithm.klCoefficient": 0.1, "spec.algorithm.kl": {"placement": "reward"}},
        TAUGHT | {"spec.algorithm.klCoefficient": 0.1, "spec.algorithm.kl": {"estimator": "k2"}},
        "spec.algorithm.kl",
        "Remove kl.placement",
    ),
    Case(
        "a penalty beside maxrl is in the loss",
        {"spec.algorithm": {"type": "maxrl", "klCoefficient": 0.1, "kl": {"placement": "reward"}}},
        {"spec.algorithm": {"type": "maxrl", "klCoefficient": 0.1, "kl": {"estimator": "k2"}}},
        "spec.algorithm.kl",
        "Remove kl.placement",
    ),
    *(
        Case(
            f"a teacher knows no {field}",
            TAUGHT | {f"spec.rollout.{field}": value},
            {f"spec.rollout.{field}": value},
            f"spec.rollout.{field}",
            f"Remove rollout.{field}",
        )
        for field, value in (("temperature", 0.7), ("topP", 0.9), ("topK", 20), ("minP", 0.1))
    ),
]

ALGORITHM_CASES = [
    _not_for_sft("groupSize", 4),
    _not_for_sft("clipRange", 0.2),
    _not_for_sft("klCoefficient", 0.01),
    _not_for_sft("updatesPerStep", 2),
    _not_for_sft("lossAggregation", "constant"),
    *(_only_with_its_type(group, options) for group, options in GROUPS.items()),
    Case(
        "a group of one has nothing to compare",
        {"spec.algorithm": {"type": "rloo", "groupSize": 1}},
        {"spec.algorithm": {"type": "reinforce_plus_plus", "groupSize": 1}},
        "spec.algorithm.groupSize",
        "Use a value such as 8",
    ),
    Case(
        "a critic compares a group of one",
        {"spec.algorithm": {"type": "grpo", "groupSize": 1}},
        {"spec.algorithm": {"type": "ppo", "groupSize": 1, "clipRange": 0.2}},
        "spec.algorithm.groupSize",
        "Use a value such as 8",
    ),
    Case(
        "the policy learns after the critic's first steps",
        {"spec.algorithm": {"type": "ppo", "ppo": {"criticWarmupSteps": 20}}, "spec.trainer.steps": 20},
        {"spec.algorithm": {"type": "ppo", "ppo": {"criticWarmupSteps": 19}}, "spec.trainer.steps": 20},
        "spec.algorithm.ppo.criticWarmupSteps",
        "Lower criticWarmupSteps, or raise trainer.steps",
    ),
    Case(
        "clipRange only where a ratio is clipped",
        {"spec.algorithm": {"type": "gspo", "clipRange": 0.2}},
        {"spec.algorithm": {"type": "dapo", "clipRange": 0.2}},
        "spec.algorithm.clipRange",
        "Remove clipRange",
    ),
    Case(
        "groups are replaced only where they are compared",
        {"spec.algorithm": {"type": "reinforce_plus_plus", "maxRefills": 2}},
        {"spec.algorithm": {"type": "rloo", "maxRefills": 2}},
        "spec.algorithm.maxRefills",
        "Remove maxRefills",
    ),
    Case(
        "a curriculum needs a reward",
        TAUGHT | {"spec.data.curriculum": {}},
        {"spec.data.curriculum": {}},
        "spec.data.curriculum",
        "Remove data.curriculum",
    ),
    *(
        Case(
            f"a curriculum needs groups: {name}",
            {"spec.algorithm": other, "spec.data.curriculum": {"leastShare": 0.2}},
            {"spec.algorithm": {"type": "ppo", "groupSize": 2}, "spec.data.curriculum": {"leastShare": 0.2}},
            "spec.data.curriculum",
            "Set algorithm.groupSize",
        )
        for name, other in {"ppo": {"type": "ppo"}, "one": {"type": "reinforce", "groupSize": 1}}.items()
    ),
    Case(
        "the overlong penalty begins within the limit",
        {"spec.algorithm": {"type": "dapo", "dapo": {"overlongBufferTokens": 1024}}},
        {"spec.algorithm": {"type": "dapo", "dapo": {"overlongBufferTokens": 1023}}},
        "spec.algorithm.dapo.overlongBufferTokens",
        "a fifth of rollout.maxResponseTokens",
    ),
    _not_for_sft("correction", {"preset": "decoupled_token_is"}),
    *(
        Case(
            f"{limit} only beside {kind}",
            {"spec.algorithm.correction": {other: "token", limit: value}},
            {"spec.algorithm.correction": {kind: "token", limit: value}},
            f"spec.algorithm.correction.{limit}",
            f"Set {kind}, or remove {limit}",
        )
        for kind, limit, value, other in (
            ("mask", "maskLow", 0.1, "weights"),
            ("mask", "maskHigh", 3.0, "weights"),
            ("weights", "maxWeight", 3.0, "mask"),
        )
    ),
    _not_for_dpo("groupSize", 4),
    _not_for_dpo("klCoefficient", 0.01),
    _not_for_dpo("updatesPerStep", 2),
    _not_for_dpo("lossAggregation", "constant"),
    _not_for_dpo("correction", {"preset": "decoupled_token_is"}),
    Case(
        "dpo clips nothing",
        DPO | {"spec.algorithm.clipRange": 0.2},
        {"spec.algorithm.clipRange": 0.2},
        "spec.algorithm.clipRange",
        "Remove clipRange",
    ),
    Case("dpo has no reward", {"spec.algorithm.type": "dpo"}, DPO, "spec.reward", "Remove reward"),
    *PAIR_CASES,
    *DISTILLATION_CASES,
    Case(
        "a KL penalty has a weight",
        {"spec.algorithm": {"kl": {"placement": "reward"}}},
        {"spec.algorithm": {"klCoefficient": 0.1, "kl": {"placement": "reward"}}},
        "spec.algorithm.kl",
        "Set klCoefficient",
    ),
    Case(
        "k1 has no gradient in the loss",
        {"spec.algorithm": {"klCoefficient": 0.1, "kl": {"estimator": "k1"}}},
        {"spec.algorithm": {"klCoefficient": 0.1, "kl": {"estimator": "k1", "placement": "reward"}}},
        "spec.algorithm.kl.estimator",
        "Use k3",
    ),
    Case(
        "the start of a new adapter is the base",
        {"spec.algorithm": {"klCoefficient": 0.1, "kl": {"reference": "start"}}},
        {
            "spec.algorithm": {"klCoefficient": 0.1, "kl": {"reference": "start"}},
            "spec.adapter.initFrom": "s3://team/adapters/a/lora_adapter",
        },
        "spec.algorithm.kl.reference",
        "Set adapter.initFrom",
    ),
    Case(
        "a decay of an average",
        {"spec.algorithm": {"klCoefficient": 0.1, "kl": {"decay": 0.9}}},
        {"spec.algorithm": {"klCoefficient": 0.1, "kl": {"decay": 0.9, "reference": "average", "target": 0.01}}},
        "spec.algorithm.kl.decay",
        "set reference to average",
    ),
    Case(
        "a preset or fields",
        {"spec.algorithm": {"correction": {"preset": "decoupled_token_is", "mask": "token"}}},
        {"spec.algorithm": {"correction": {"weights": "token", "mask": "token"}}},
        "spec.algorithm.correction.preset",
        "Set a preset such as",
    ),
    Case(
        "a correction of something",
        {"spec.algorithm": {"correction": {"maxWeight": 3.0}}},
        {"spec.algorithm": {"correction": {"maxWeight": 3.0, "weights": "sequence"}}},
        "spec.algorithm.correction.preset",
        "or weights or mask",
    ),
    *(
        Case(
            f"a sequence's ratio is not corrected by {next(iter(by_token))} of tokens",
            {"spec.algorithm": {"type": "gspo", "correction": by_token}},
            {"spec.algorithm": {"type": "gspo", "correction": {"preset": "decoupled_seq_is"}}},
            "spec.algorithm.correction",
            "Use decoupled_seq_is",
        )
        for by_token in ({"preset": "decoupled_geo_rs_token_tis"}, {"weights": "token"}, {"mask": "token"})
    ),
]
