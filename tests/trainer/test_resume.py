"""Resuming from a checkpoint gives the bytes of a run without interruption, on any layout."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

from lorarl_api.v1alpha1.runtime import KeepBestSpec
from lorarl_trainer.checkpoint import Checkpoint, CheckpointStore, Published
from lorarl_trainer.errors import StorageError
from lorarl_trainer.protocols.workers import Resumed
from lorarl_trainer.session.checkpoints import RunCheckpoints
from lorarl_trainer.workers.checkpoints import CheckpointingWorker
from support.in_process import Colocated, OneWorker
from support.loop_runs import adapter_digest, run_in_process

pytestmark = pytest.mark.both_backends

STEPS = 6


def start(colocated, out: Path, **changes: object) -> Colocated:
    out.mkdir(exist_ok=True)
    worker: Colocated = colocated(trainer__steps=STEPS, **changes)
    worker.out = out
    worker.job.spec.checkpoint.__dict__["uri"] = f"file://{out}/checkpoints"  # frozen: only tests change it
    return worker


def whole_run(colocated, out: Path, **changes: object) -> tuple[str, list[float]]:
    worker = start(colocated, out, **changes)
    rows = asyncio.run(run_in_process(worker))
    return adapter_digest(out), [row.metrics.get("reward_mean", row.metrics["loss"]) for row in rows]


@pytest.mark.parametrize("adapter_type", ["canonical_lora", "lora"])
@pytest.mark.parametrize("stop_after", [1, 2, 5])
def test_failure_14_an_interrupted_run_ends_in_the_same_bytes(
    colocated, tmp_path: Path, stop_after: int, adapter_type: str
) -> None:
    changes = {"adapter__type": adapter_type, "adapter__dropout": 0.1}
    expected, rewards = whole_run(colocated, tmp_path / "whole", **changes)
    first = asyncio.run(run_in_process(start(colocated, tmp_path / "parts", **changes), stop_after=stop_after))
    rest = asyncio.run(run_in_process(start(colocated, tmp_path / "parts", **changes)))
    assert [row.step for row in first + rest] == [1, 2, 3, 4, 5, 6]
    assert [row.metrics["reward_mean"] for row in first + rest] == rewards
    assert adapter_digest(tmp_path / "parts") == expected


def test_a_state_in_several_files_is_resumed_too(colocated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = whole_run(colocated, tmp_path / "whole")
    monkeypatch.setattr("lorarl_trainer.workers.checkpoints.STATE_FILE_BYTES", 10_000)
    asyncio.run(run_in_process(start(colocated, tmp_path / "parts"), stop_after=2))
    assert len(list(tmp_path.glob("parts/checkpoints/*/iter_0000002/trainer_state/state-*-of-*.safetensors"))) > 2
    asyncio.run(run_in_process(start(colocated, tmp_path / "parts")))
    assert adapter_digest(tmp_path / "parts") == expected


def test_a_seed_gives_the_same_bytes_with_either_transport(colocated, tmp_path: Path) -> None:
    tensor, _ = whole_run(colocated, tmp_path / "tensor")
    again, _ = whole_run(colocated, tmp_path / "again")
    disk, _ = whole_run(colocated, tmp_path / "disk", rollout__adapterSync="disk")
    other, _ = whole_run(colocated, tmp_path / "other", trainer__seed=1)
    assert tensor == again == disk != other


def test_a_last_checkpoint_that_was_kept_is_published_by_the_next_start(
    colocated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = CheckpointStore.publish

    def refuse_the_last(store: CheckpointStore, checkpoint: Checkpoint) -> Published:
        if checkpoint.step == STEPS:
            raise StorageError("503")
        return publish(store, checkpoint)

    with monkeypatch.context() as broken, pytest.raises(StorageError, match="start the same job on this machine"):
        broken.setattr(CheckpointStore, "publish", refuse_the_last)
        asyncio.run(run_in_process(start(colocated, tmp_path)))
    assert asyncio.run(run_in_process(start(colocated, tmp_path))) == []
    assert adapter_digest(tmp_path) == whole_run(colocated, tmp_path / "whole")[0]


def test_settings_that_may_change_between_starts_do(colocated, tmp_path: Path) -> None:
    asyncio.run(run_in_process(start(colocated, tmp_path / "run"), stop_after=2))
    changed = start(
        colocated, tmp_path / "run", trainer__learningRate=1e-3, checkpoint__every=3, rollout__promptsPerStep=2
    )
    rows = asyncio.run(run_in_process(changed))
    assert [row.step for row in rows] == [3, 4, 5, 6]


def test_checkpoints_by_time_are_resumed_to_the_same_bytes(
    colocated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a checkpoint is made depends on the machine. What is trained does not."""
    changes = {"checkpoint__every": 100}
    expected, _ = whole_run(colocated, tmp_path / "whole", **changes)
    asked = count(1)  # once a step: the second one is overdue
    monkeypatch.setattr(RunCheckpoints, "is_overdue", lambda _: next(asked) % 2 == 0)
    asyncio.run(run_in_process(start(colocated, tmp_path / "parts", **changes), stop_after=3))
    made = sorted(path.name for path in tmp_path.glob("parts/checkpoints/*/iter_*"))
    assert made == ["iter_0000002", "iter_0000003"], "overdue, and at the interruption"
    asyncio.run(run_in_process(start(colocated, tmp_path / "parts", **changes)))
    assert adapter_digest(tmp_path / "parts") == expected


def test_rows_that_changed_between_starts_are_a_warning(
    colocated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed: list[Resumed] = []
    claim = CheckpointingWorker.claim_checkpoints

    def noted(worker: CheckpointingWorker) -> Resumed:
        resumed.append(claim(worker))
        return resumed[-1]

    monkeypatch.setattr(CheckpointingWorker, "claim_checkpoints", noted)
    for rows, digest, last in ((480, "a", 2), (480, "a", 3), (479, "b", 4)):
        worker = start(colocated, tmp_path / "run", checkpoint__every=1)
        worker.made_of = {"data": {"train": {"rows": rows, "sha256": digest}}}
        asyncio.run(run_in_process(worker, stop_after=last))
    first, same, other = (found.warnings for found in resumed)
    assert first == same == ()
    assert "the rows of train (had 480, has 479) changed since the checkpoint was made" in other[0]


def test_an_evaluation_that_was_cut_short_still_chooses_the_best(colocated, tmp_path: Path) -> None:
    """SIGTERM leaves no time for an evaluation, and `kill -9` may hit one. The next run makes it."""
    asyncio.run(run_in_process(start(colocated, tmp_path / "run"), stop_after=2))
    worker, found = start(colocated, tmp_path / "run"), []
    worker.spec.checkpoint.__dict__["keep_best"] = KeepBestSpec()

    class Evaluating(OneWorker):
        async def resume(self) -> Resumed:
            resumed = await super().resume()
            await self.complete(resumed.step, {"after this step": {"eval_score": 0.75}}, 0.75)
            await self.drain_uploads()
            found.append(await self.best())
            return resumed

    asyncio.run(run_in_process(worker, workers=Evaluating(worker.worker)))
    assert [(best.step, best.value) for best in found if best] == [(2, 0.75)]
    (card,) = tmp_path.glob("run/checkpoints/*/iter_0000002/lora_adapter/README.md")
    assert "| eval_score | 0.75 |" in card.read_text()


@pytest.mark.both_backends(quick=True)
def test_training_learns(colocated, tmp_path: Path) -> None:
    worker = start(
        colocated, tmp_path / "run", rollout__promptsPerStep=12, algorithm__groupSize=8, trainer__learningRate=2e-2
    )
    rows = asyncio.run(run_in_process(worker))
    assert rows[-1].metrics["reward_mean"] > rows[0].metrics["reward_mean"] + 0.05
