"""`lorarl run --dump-rollouts` and `--replay`: the same training again, without an engine and without rewards."""

from __future__ import annotations

from pathlib import Path

import pytest

from run.command import Ended
from run.jobs import Job

STEPS = 3
GRADIENTS = ("loss", "grad_norm", "clipped_share", "kl", "mean_abs_logprob_diff", "reward_mean")
ALGORITHM = {"updatesPerStep": 2, "correction": {"preset": "decoupled_token_is"}, "klCoefficient": 0.01}


@pytest.mark.long
def test_a_replay_makes_the_same_updates_without_an_engine(job: Job, tmp_path: Path) -> None:
    job.change(trainer={"steps": STEPS}, algorithm=ALGORITHM)
    made = job.start(more=["--dump-rollouts", "rollouts"]).end()
    assert made.code == 0, made.stderr
    refused = job.start(more=["--replay", "rollouts"], out=tmp_path / "again").end()
    assert refused.code == 1 and "--set metadata.name=letters-replay" in refused.stderr
    again = replayed(job, tmp_path / "again")
    assert again.adapter_digest == made.adapter_digest
    for before, after in zip(steps_of(made), steps_of(again), strict=True):
        assert {name: after[name] for name in GRADIENTS} == {name: before[name] for name in GRADIENTS}
        assert "generate" not in after["seconds"] and "evaluate" not in after["seconds"]


def replayed(job: Job, out: Path) -> Ended:
    options = ["--replay", "rollouts", "--set", "metadata.name=again"]
    ended = job.start(more=options, out=out).end()
    assert ended.code == 0, ended.stderr
    assert "vLLM agrees" not in ended.stdout
    return ended


def steps_of(ended: Ended) -> list[dict]:
    return [row for row in ended.rows if "loss" in row]
