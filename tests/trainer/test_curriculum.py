"""A curriculum in whole runs: rows without signal are passed over, and a resumed run draws the same rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.in_process import Colocated
from support.loop_runs import adapter_digest, run_in_process
from trainer.test_resume import STEPS, start

CHANGES = {"data__curriculum": "{passReward: 0.6, leastShare: 0.05}", "rollout__promptsPerStep": 8}


def state(out: Path, step: int) -> dict[str, object]:
    (folder,) = out.glob(f"checkpoints/*/iter_{step:07d}*")
    found: dict[str, object] = json.loads((folder / "trainer_state/state.json").read_text())
    return found


@pytest.mark.parametrize("refills", [0, 2])
def test_an_interrupted_run_draws_the_same_rows(
    colocated: Callable[..., Colocated], tmp_path: Path, refills: int
) -> None:
    changes = CHANGES | {"algorithm__maxRefills": refills}
    whole = asyncio.run(run_in_process(start(colocated, tmp_path / "whole", **changes)))
    first = asyncio.run(run_in_process(start(colocated, tmp_path / "parts", **changes), stop_after=3))
    rest = asyncio.run(run_in_process(start(colocated, tmp_path / "parts", **changes)))
    assert [row.metrics for row in first + rest] == [row.metrics for row in whole]
    assert adapter_digest(tmp_path / "parts") == adapter_digest(tmp_path / "whole")
    assert state(tmp_path / "parts", STEPS) == state(tmp_path / "whole", STEPS)
    assert max(row.metrics["curriculum/skipped_share"] for row in rest) > 0, "the scenario needs rows that are passed"


def test_a_checkpoint_has_the_rates_of_the_rows_that_were_drawn(
    colocated: Callable[..., Colocated], tmp_path: Path
) -> None:
    plain = asyncio.run(run_in_process(start(colocated, tmp_path / "plain", rollout__promptsPerStep=8)))
    assert "curriculum" not in state(tmp_path / "plain", STEPS)
    assert not any(name.startswith("curriculum/") for row in plain for name in row.metrics)
    found = asyncio.run(run_in_process(start(colocated, tmp_path / "run", **CHANGES)))
    kept = state(tmp_path / "run", STEPS)["curriculum"]
    assert isinstance(kept, dict) and kept["rows"].keys() == kept["rates"].keys() and len(kept["rates"]) == 12
    assert all(0 <= rate <= 1 for rate in kept["rates"].values())
    assert found[0].metrics["curriculum/known_share"] == pytest.approx(8 / 12)
    assert found[0].metrics["curriculum/skipped_share"] == 0 and found[-1].metrics["curriculum/known_share"] == 1
