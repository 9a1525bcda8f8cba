"""Updates that are withheld: one or two pass, three in a row stop the run."""

from __future__ import annotations

import math

import pytest

from lorarl_trainer.errors import GradientError
from lorarl_trainer.guards.nonfinite import count_withheld
from lorarl_trainer.samples.requests import UpdateResult

HEALTHY, NO_GRADIENT = (0.5, 1.0), (0.5, math.nan)


def update(loss: float, norm: float) -> UpdateResult:
    return UpdateResult({"loss": loss, "grad_norm": norm}, None, {})


def count(*updates: tuple[float, float]) -> int:
    in_a_row = 0
    for step, (loss, norm) in enumerate(updates, 1):
        in_a_row = count_withheld(update(loss, norm), step, in_a_row)
    return in_a_row


@pytest.mark.parametrize("broken", [(0.5, math.inf), (0.5, math.nan), (math.nan, 0.0), (-math.inf, 0.0)])
def test_a_loss_or_a_gradient_that_is_not_finite_is_counted(broken: tuple[float, float]) -> None:
    assert count(HEALTHY) == 0
    assert count(HEALTHY, broken, broken) == 2


def test_a_healthy_update_ends_the_row() -> None:
    assert count(NO_GRADIENT, NO_GRADIENT, HEALTHY, NO_GRADIENT, NO_GRADIENT) == 2


def test_the_third_in_a_row_stops_the_run() -> None:
    told = r"step 4: 3 updates in a row were withheld.*\(now loss 0\.5, gradient norm nan\).*Lower spec\.trainer"
    with pytest.raises(GradientError, match=told):
        count(HEALTHY, NO_GRADIENT, NO_GRADIENT, NO_GRADIENT)


@pytest.mark.parametrize("broken", ["critic/loss", "critic/grad_norm"])
def test_a_critic_that_is_not_finite_counts_too(broken: str) -> None:
    healthy = {"loss": 0.5, "grad_norm": 1.0, "critic/loss": 0.1, "critic/grad_norm": 1.0}
    bad = UpdateResult(healthy | {broken: math.nan}, None, {})
    assert count_withheld(UpdateResult(healthy, None, {}), 1, 2) == 0
    assert count_withheld(bad, 1, 0) == 1
    with pytest.raises(GradientError, match=r"gradient norm 1\.0; of the critic .*nan"):
        count_withheld(bad, 3, 2)
