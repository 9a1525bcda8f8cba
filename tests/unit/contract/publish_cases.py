"""The rules of `publish`, each broken once and kept once."""

from __future__ import annotations

from typing import Any

from unit.contract.manifests import EVAL, SFT, Case, Changes

TO = {"podSelector": {"model.aibrix.ai/name": "qwen"}}
ENTRY = {"name": "sums", "minimum": 0.7, "aibrix": TO}
KEPT = EVAL | {"spec.checkpoint.keepBest": {}, "spec.checkpoint.keepAll": True}
PUBLISHES = KEPT | {"spec.publish": [ENTRY]}
HARD = {"name": "hard", "uri": "file:out/hard.jsonl"}
LOSS = SFT | KEPT | {"spec.publish": [{"name": "sums", "maximum": 1.2, "aibrix": TO}]}


def _needs(field: str, bad: Any, hint: str, around: Changes | None = None) -> Case:
    path, around = f"spec.{field}", around or {}
    return Case(f"publish with {field}", around | PUBLISHES | {path: bad}, PUBLISHES, path, hint)


PUBLISH_CASES = [
    _needs("checkpoint.keepBest", None, "Add keepBest"),
    _needs("checkpoint.keepAll", False, "Set keepAll: true."),
    _needs("checkpoint.uri", "pvc://claim/adapters", "Store the checkpoints in s3://"),
    _needs("checkpoint.deletionPolicy", "Delete", "Set deletionPolicy: Retain"),
    _needs("checkpoint.resume", "Never", "Set resume: Auto"),
    _needs("model.quantization", "fp8", "Remove quantization, or publish"),
    Case("no DoRA is published", LOSS | {"spec.adapter.dora": True}, LOSS, "spec.adapter.dora", "lorarl merge"),
    Case(
        "a score has a minimum",
        PUBLISHES | {"spec.publish": [{"name": "sums", "maximum": 1.2, "aibrix": TO}]},
        PUBLISHES,
        "spec.publish",
        "Set minimum",
    ),
    Case("a loss has a maximum", LOSS | {"spec.publish": [ENTRY]}, LOSS, "spec.publish", "Set maximum"),
    Case(
        "an evaluation with its own reward is a score, also of sft",
        LOSS
        | {"spec.checkpoint.keepBest": {"eval": "hard"}, "spec.data.evals": [HARD | {"reward": {"type": "exact"}}]},
        LOSS | {"spec.checkpoint.keepBest": {"eval": "hard"}, "spec.data.evals": [HARD]},
        "spec.publish",
        "Set minimum",
    ),
    Case(
        "pods are selected by labels",
        PUBLISHES | {"spec.publish": [ENTRY | {"aibrix": {"podSelector": {"no key": "qwen"}}}]},
        PUBLISHES,
        "spec.publish[0].aibrix.podSelector",
        "Write a key such as",
    ),
    Case(
        "an entry has one target",
        PUBLISHES | {"spec.publish": [ENTRY | {"kserve": {"service": "qwen"}}]},
        PUBLISHES | {"spec.publish": [{"name": "sums", "minimum": 0.7, "kserve": {"service": "qwen"}}]},
        "spec.publish[0].aibrix",
        "Add a second entry",
    ),
    Case(
        "an entry has a target",
        PUBLISHES | {"spec.publish": [{"name": "sums", "minimum": 0.7}]},
        PUBLISHES,
        "spec.publish[0].aibrix",
        "Set aibrix for AIBrix, or kserve for KServe.",
    ),
    Case(
        "two entries have two names",
        PUBLISHES | {"spec.publish": [ENTRY, ENTRY]},
        PUBLISHES | {"spec.publish": [ENTRY, ENTRY | {"name": "more"}]},
        "spec.publish",
        "Rename one of them.",
    ),
]
