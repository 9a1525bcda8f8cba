"""All faults of a field come at once: those of its value, and those of the rules that it breaks besides."""

from __future__ import annotations

import pytest

from lorarl_api.load import faults
from lorarl_api.schedules.manifest import schedule_faults
from unit.contract.manifests import manifest
from unit.contract.schedule_cases import schedule

HARD: dict[str, object] = {"name": "hard", "uri": "file:hard.jsonl"}


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"spec.checkpoint.keepBest": True}, ["spec.checkpoint.keepBest"] * 2),
        (
            {"spec.checkpoint.keepBest": {"metric": "reward"}},
            ["spec.checkpoint.keepBest.metric", "spec.checkpoint.keepBest"],
        ),
        (
            {"spec.checkpoint.keepBest": {"eval": "hard", "passAtK": "4"}, "spec.data.evals": [HARD]},
            ["spec.checkpoint.keepBest.passAtK"] * 2,
        ),
        ({"spec.checkpoint.keepbest": {}}, ["spec.checkpoint.keepbest"]),
        ({"spec.trainer.tokensPerMicroBatch": "10"}, ["spec.trainer.tokensPerMicroBatch"] * 2),
        ({"spec.rollout.offload": "weights"}, ["spec.rollout.offload"] * 2),
        ({"spec.trainer.tensorParallelSize": "2", "spec.adapter.rank": 3}, ["spec.trainer.tensorParallelSize"]),
        ({"spec.adapter.rank": "3", "spec.trainer.tensorParallelSize": 2}, ["spec.adapter.rank"] * 2),
    ],
)
def test_all_that_is_wrong_with_a_field_is_said_at_once(changes: dict[str, object], fields: list[str]) -> None:
    """The second of two faults came once the first was corrected."""
    assert [fault.path for fault in faults(manifest(changes))] == fields


@pytest.mark.parametrize(
    "changes", [{"spec.rewrd": {"type": "exact"}, "spec.reward": None}, {"spec.algorithm.type": "x"}]
)
def test_what_may_follow_from_a_wrong_field_is_not_said_of_others(changes: dict[str, object]) -> None:
    assert len(faults(manifest(changes))) == 1


def test_the_template_of_a_schedule_has_all_faults_of_a_field_too() -> None:
    keep_best = "spec.template.spec.checkpoint.keepBest"
    found = schedule_faults(schedule({f"{keep_best}.metric": "reward"}))
    assert [fault.path for fault in found] == [f"{keep_best}.metric", keep_best]
