"""Trials of a mixture of experts at one worker: each has its own routing, and the bytes that it has alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.shared import together, trial
from trainer.test_shared_trials import found, shared, trained_alone

COMMON: dict[str, Any] = {"adapter__rank": 4}
TRIALS: list[dict[str, Any]] = [
    {"trainer__seed": 3, "algorithm__updatesPerStep": 2},
    {"trainer__seed": 4, "trainer__learningRate": 3e-3, "algorithm__klCoefficient": 0.1},
    {"trainer__steps": 3, "trainer__beta1": 0.5},
]


@pytest.mark.parametrize("replay", [True, pytest.param(False, marks=pytest.mark.long)])
def test_trials_of_a_mixture_end_in_the_bytes_that_they_have_alone(
    colocated, model_folder: Callable[[str], Path], tmp_path: Path, replay: bool
) -> None:
    common = COMMON | {"trainer__routerReplay": replay}
    alone = [
        trained_alone(
            lambda **given: colocated("qwen3_moe", **given), tmp_path / f"alone-{n}", "grpo", common | changes
        )
        for n, changes in enumerate(TRIALS)
    ]
    assert len({str(digests) for digests, _ in alone}) == len(alone), "trials that train alike would prove nothing"
    assert all("routing_changed" in str(metrics[-1]) for _, metrics in alone)
    model = model_folder("qwen3_moe")
    actor = shared(model, tmp_path, **common, **TRIALS[0])
    trials = [trial(actor, model, tmp_path / f"{n}", **common, **changes) for n, changes in enumerate(TRIALS)]
    for one in trials:
        one.start(model)
    for one, steps, expected in zip(trials, together(trials), alone, strict=True):
        assert found(one.out, steps) == expected


def test_what_the_passes_of_a_trial_found_waits_with_it(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    model = model_folder("qwen3_moe")
    actor = shared(model, tmp_path, **COMMON)
    for name in ("one", "two"):
        trial(actor, model, tmp_path / name, **COMMON).start(model)
    parking, compared = actor.shared._parking, actor.shared._common.backend.model
    parking.bring("one")
    compared.continue_routing((3.0, 8.0))
    parking.bring("two")
    assert compared.routing_differences() == (0.0, 0.0)
    compared.continue_routing((1.0, 2.0))
    parking.bring("one")
    assert compared.routing_differences() == (3.0, 8.0)
    parking.bring("two")
    assert compared.routing_differences() == (1.0, 2.0)
    parking.forget("two")
    compared.continue_routing((1.0, 2.0))
    trial(actor, model, tmp_path / "three", **COMMON).start(model)
    assert compared.routing_differences() == (0.0, 0.0), "those of a trial that is gone are no one's"
