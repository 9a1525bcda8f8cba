"""Cases of the rules for prompts, sampling, evaluations, schedules and checkpoints."""

from __future__ import annotations

from unit.contract.manifests import Case

SAMPLING_CASES = [
    Case(
        "arguments only for a template",
        {"spec.data.chatTemplateArguments": {"a": 1}, "spec.data.chatTemplate": False},
        {"spec.data.chatTemplateArguments": {"enable_thinking": False, "deep": [{"a": 1.5}]}},
        "spec.data.chatTemplateArguments",
        "Remove chatTemplateArguments",
    ),
    Case(
        "a smallest learning rate only with a schedule",
        {"spec.trainer.minLearningRateShare": 0.1},
        {"spec.trainer": {"minLearningRateShare": 0.1, "learningRateSchedule": "cosine"}},
        "spec.trainer.minLearningRateShare",
        "set learningRateSchedule: cosine",
    ),
]
