"""Which trials of a sweep share a worker, and what is said of the others before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.sharing import classes, groups_of
from lorarl_trainer.launch.sweep import grid
from unit.contract.manifests import manifest

ON_CPU = "spec.cluster.gpusPerNode=0"


def jobs(*changes: str) -> list[LoRARLJob]:
    """A job for each text of assignments, with blanks between them."""
    text = yaml.safe_dump(manifest({}))
    return [
        load_job(text, [ON_CPU, f"metadata.name=job-{place}", *(f"spec.{part}" for part in change.split())])
        for place, change in enumerate(changes)
    ]


@pytest.mark.parametrize(
    "change",
    [
        *("trainer.seed=7", "trainer.learningRate=1e-3", "trainer.steps=9", "trainer.warmupSteps=3"),
        *(
            "trainer.beta1=0.5",
            "trainer.weightDecay=0.1",
            "trainer.maxGradNorm=9",
            "trainer.learningRateSchedule=cosine",
        ),
        *(
            "algorithm.type=rloo",
            "algorithm.clipRange=0.1",
            "algorithm.klCoefficient=0.1",
            "algorithm.updatesPerStep=2",
        ),
        *("reward.type=numeric", "checkpoint.keep=9"),
    ],
)
def test_what_the_driver_decides_or_each_update_names_may_differ(change: str) -> None:
    assert classes(jobs("trainer.steps=4", change)) == ([[0, 1]], [])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("rollout.temperature=0.5", "spec.rollout.temperature"),
        ("adapter.rank=4", "spec.adapter.rank"),
        ("adapter.dropout=0.5", "spec.adapter.dropout"),
        ("rollout.promptsPerStep=8", "spec.rollout.promptsPerStep"),
        ("rollout.maxResponseTokens=17", "spec.rollout.maxResponseTokens"),
        ("trainer.backend=fsdp", "spec.trainer.backend"),
        ("trainer.tokensPerMicroBatch=9000", "spec.trainer.tokensPerMicroBatch"),
        ("algorithm.groupSize=2", "spec.algorithm.groupSize"),
        ("algorithm.type=ppo algorithm.groupSize=8", "spec.algorithm.type"),
        ("algorithm.klCoefficient=0.1 algorithm.kl.reference=average", "spec.algorithm.kl.reference"),
    ],
)
def test_what_a_workers_plan_depends_on_makes_another_class(change: str, field: str) -> None:
    found, lines = classes(jobs("trainer.seed=1", "trainer.seed=2", change, f"{change} trainer.seed=3"))
    assert (found, lines) == ([[0, 1], [2, 3]], [])
    found, [line] = classes(jobs("trainer.seed=1", "trainer.seed=2", change))
    assert found == [[0, 1]] and line == f"{field} is that of no other trial, so without sharing: job-2"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("trainer.tensorParallelSize=2", "spec.trainer asks for 2 workers, so without sharing: job-0, job-1"),
        ("cluster.gpusPerNode=4", "spec.cluster.gpusPerNode asks for 4 workers, so without sharing: job-0, job-1"),
        (
            "rollout.servers=[http://a:8000] rollout.serverFolder=/shared",
            "spec.rollout.servers generate, so without sharing: job-0, job-1",
        ),
    ],
)
def test_what_shares_no_worker_at_all_is_said_once(change: str, line: str) -> None:
    assert classes(jobs(change, f"{change} trainer.seed=2")) == ([], [line])


def test_groups_have_as_many_seats_as_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest({})))
    trials = grid(
        "demo",
        ["spec.adapter.rank=4,8", "spec.trainer.seed=0,1,2", "spec.trainer.expertParallelSize=1,2"],
        [ON_CPU],
        tmp_path,
    )
    made = [load_job(path, trial.overrides) for trial in trials]
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    groups, [line] = groups_of(path, trials, made, tmp_path, 2, share=True)
    assert [(len(group.trials), len(group.shares), group.workers is not None) for group in groups] == [
        *((3, 2, True), (3, 2, True), (6, 2, False))
    ]
    first, second, alone = groups
    assert first.workers is not None and second.workers is not None
    assert first.workers.folder != second.workers.folder and "expertParallelSize=2" in alone.trials[0].label
    assert all(share == first.workers.environment for share in first.shares)
    assert line.startswith("spec.trainer asks for 2 workers")
    [whole], lines = groups_of(path, trials, made, tmp_path, 2, share=False)
    assert list(whole.trials) == trials and whole.workers is None and lines == []
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    with pytest.raises(InputError, match=r"RAY_ADDRESS: got auto, .* or leave out --share"):
        groups_of(path, trials, made, tmp_path, 2, share=True)
