"""A step's time follows from its arithmetic: twice the work takes twice as long, and sft generates nothing."""

from __future__ import annotations

from typing import Any

import pytest

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.planning.duration import SHORT, arithmetic_speed, step_time
from unit.contract.manifests import manifest
from unit.trainer.planning.shapes import SHAPES

MODEL = sizes_of(SHAPES["0.5B"])


def times(changes: dict[str, Any], speed: float = 1e11) -> tuple[float, float]:
    spec = LoRARLJobSpec.model_validate(manifest(changes)["spec"])
    time = step_time(spec, MODEL, 100.0, speed)
    return time.least, time.most


def test_the_formula() -> None:
    """Per parameter, a token takes 2 operations generated and 4 trained. A prompt is computed once for its group."""
    least, most = times(
        {"spec.rollout.promptsPerStep": 2, "spec.algorithm.groupSize": 4, "spec.rollout.maxResponseTokens": 50}
    )
    for seconds, response in ((least, 50 * SHORT), (most, 50)):
        operations = 2 * MODEL.parameters(1) * 3 * (2 * 100 + 8 * response)
        assert seconds == pytest.approx(0.3 + operations / (1e11 * 0.6))


def test_a_short_completion_is_as_long_as_answers_are() -> None:
    spec = LoRARLJobSpec.model_validate(manifest({"spec.rollout.maxResponseTokens": 50})["spec"])
    whole, longer = (step_time(spec, MODEL, 100.0, 1e11, short) for short in (50, 80))
    assert whole.least == whole.most == longer.least, "no completion is longer than it may be"
    assert step_time(spec, MODEL, 100.0, 1e11, 25).least < whole.least


def test_a_machine_of_half_the_speed_takes_twice_as_long() -> None:
    assert times({}, 5e10) == pytest.approx([2 * seconds - 0.3 for seconds in times({}, 1e11)])


def test_this_machine_computes_at_one_speed() -> None:
    """Also while other programs are busy, as on a machine that runs tests."""
    speeds = sorted(arithmetic_speed() for _ in range(3))
    assert 1e8 < speeds[0] <= speeds[-1] < 1e15
    assert speeds[-1] < 3 * speeds[0]
