"""Cases of the rules for prompts, sampling, evaluations, schedules and checkpoints."""

from __future__ import annotations

from unit.contract.manifests import EVAL, SFT, Case

HARD = {"name": "hard", "uri": "file:out/hard.jsonl"}
DRAWN = {**HARD, "temperature": 1.0, "samples": 8, "passAtK": [1, 8]}

PARTIAL = {"extraPrompts": 16}
CORRECTED = {"type": "grpo", "correction": {"preset": "decoupled_token_is"}}

SAMPLING_CASES = [
    Case(
        "answers that are continued need a correction",
        {"spec.rollout.partial": PARTIAL},
        {"spec.rollout.partial": PARTIAL, "spec.algorithm": CORRECTED},
        "spec.rollout.partial",
        "Add algorithm.correction",
    ),
    Case(
        "only answers of groups are continued",
        SFT | {"spec.rollout.partial": PARTIAL},
        SFT,
        "spec.rollout.partial",
        "Remove rollout.partial",
    ),
    Case(
        "no refills beside answers that are continued",
        {"spec.rollout.partial": PARTIAL, "spec.algorithm": {**CORRECTED, "type": "dapo"}},
        {"spec.rollout.partial": PARTIAL, "spec.algorithm": {**CORRECTED, "type": "dapo", "dapo": {"maxRefills": 0}}},
        "spec.rollout.partial",
        "Set algorithm.dapo.maxRefills: 0",
    ),
    Case(
        "a round is shorter than an answer",
        {"spec.rollout.partial": PARTIAL | {"tokensPerRound": 1024}, "spec.algorithm": CORRECTED},
        {"spec.rollout.partial": PARTIAL | {"tokensPerRound": 1023}, "spec.algorithm": CORRECTED},
        "spec.rollout.partial.tokensPerRound",
        "Remove tokensPerRound",
    ),
    Case(
        "no curriculum beside answers that are continued",
        {"spec.rollout.partial": PARTIAL, "spec.algorithm": CORRECTED, "spec.data.curriculum": {}},
        {"spec.algorithm": CORRECTED, "spec.data.curriculum": {}},
        "spec.rollout.partial",
        "Remove one of the two",
    ),
    Case(
        "no stop texts beside answers that are continued",
        {"spec.rollout.partial": PARTIAL, "spec.rollout.stop": ["#"], "spec.algorithm": CORRECTED},
        {"spec.rollout.stop": ["#"], "spec.algorithm": CORRECTED},
        "spec.rollout.partial",
        "Remove rollout.stop",
    ),
    Case(
        "arguments only for a template",
        {"spec.data.chatTemplateArguments": {"a": 1}, "spec.data.chatTemplate": False},
        {"spec.data.chatTemplateArguments": {"enable_thinking": False, "deep": [{"a": 1.5}]}},
        "spec.data.chatTemplateArguments",
        "Remove chatTemplateArguments",
    ),
    Case(
        "a template's file only with templates",
        {"spec.data.chatTemplateFile": "file:own.jinja", "spec.data.chatTemplate": False},
        {"spec.data.chatTemplateFile": "file:own.jinja"},
        "spec.data.chatTemplateFile",
        "Remove chatTemplateFile",
    ),
    Case(
        "the policy's warm-up comes after the critic's",
        {
            "spec.algorithm": {"type": "ppo", "ppo": {"criticWarmupSteps": 12}},
            "spec.trainer.steps": 20,
            "spec.trainer.warmupSteps": 9,
        },
        {
            "spec.algorithm": {"type": "ppo", "ppo": {"criticWarmupSteps": 12}},
            "spec.trainer.steps": 20,
            "spec.trainer.warmupSteps": 8,
        },
        "spec.algorithm.ppo.criticWarmupSteps",
        "Lower criticWarmupSteps or trainer.warmupSteps, or raise trainer.steps",
    ),
    Case(
        "a smallest learning rate only with a schedule",
        {"spec.trainer.minLearningRateShare": 0.1},
        {"spec.trainer": {"minLearningRateShare": 0.1, "learningRateSchedule": "cosine"}},
        "spec.trainer.minLearningRateShare",
        "set learningRateSchedule: cosine",
    ),
    Case(
        "evaluations have different names",
        {"spec.data.evals": [HARD, DRAWN]},
        {"spec.data.evals": [HARD, DRAWN | {"name": "harder"}]},
        "spec.data.evals",
        "Rename one",
    ),
    Case(
        "greedy completions are the same",
        {"spec.data.evals": [HARD | {"samples": 4}]},
        {"spec.data.evals": [DRAWN]},
        "spec.data.evals[0].samples",
        "Set temperature",
    ),
    Case(
        "pass@k needs k samples",
        {"spec.data.evals": [HARD, DRAWN | {"name": "harder", "passAtK": [16]}]},
        {"spec.data.evals": [HARD, DRAWN | {"name": "harder", "passAtK": [2]}]},
        "spec.data.evals[1].passAtK",
        "Raise samples",
    ),
    Case(
        "an evaluation of sft is a loss unless it has a reward",
        SFT | {"spec.data.evals": [HARD | {"temperature": 1.0}]},
        SFT | {"spec.data.evals": [HARD | {"temperature": 1.0, "reward": {"type": "exact"}}]},
        "spec.data.evals",
        "Give the evaluation a reward",
    ),
    Case(
        "all checkpoints or a number of them",
        {"spec.checkpoint.keep": 5, "spec.checkpoint.keepAll": True},
        {"spec.checkpoint.keepAll": True},
        "spec.checkpoint.keep",
        "Remove keep",
    ),
    Case(
        "the best by an evaluation that there is",
        EVAL | {"spec.data.evals": [HARD], "spec.checkpoint.keepBest": {"eval": "harder"}},
        EVAL | {"spec.data.evals": [HARD], "spec.checkpoint.keepBest": {"eval": "hard"}},
        "spec.checkpoint.keepBest.eval",
        "Name one of data.evals",
    ),
    Case(
        "the best by data.eval",
        {"spec.checkpoint.keepBest": {}},
        EVAL | {"spec.checkpoint.keepBest": {}},
        "spec.checkpoint.keepBest",
        "Add data.eval",
    ),
    Case(
        "the best by a pass@k that there is",
        {"spec.data.evals": [DRAWN], "spec.checkpoint.keepBest": {"eval": "hard", "passAtK": 4}},
        {"spec.data.evals": [DRAWN], "spec.checkpoint.keepBest": {"eval": "hard", "passAtK": 8}},
        "spec.checkpoint.keepBest.passAtK",
        "Add it to",
    ),
    Case(
        "pass@k of a named evaluation",
        EVAL | {"spec.checkpoint.keepBest": {"passAtK": 4}},
        {"spec.data.evals": [DRAWN], "spec.checkpoint.keepBest": {"eval": "hard", "passAtK": 1}},
        "spec.checkpoint.keepBest.passAtK",
        "Add eval",
    ),
]
