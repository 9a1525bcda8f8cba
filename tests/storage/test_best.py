"""The best checkpoint: which one it is, that it stays, and what an evaluation adds to it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lorarl_trainer.checkpoint import (
    BackgroundUploader,
    BestBy,
    Checkpoint,
    CheckpointStore,
    Evaluated,
    Published,
)
from lorarl_trainer.checkpoint.contents import MANIFEST, Manifest, step_of
from lorarl_trainer.errors import FencedError, StorageError
from lorarl_trainer.storage import LocalStore, Store, open_store
from support.checkpoints import IDENTITY, JOB, checkpoint, read_latest, require_whole
from support.fault_proxy import FaultProxy
from support.s3_server import S3Server

SCORE = BestBy("eval_score", largest=True)


def start(store: Store, best_by: BestBy | None = SCORE, keep: int | None = 1, resume: str = "Auto") -> CheckpointStore:
    run = CheckpointStore(store, JOB, keep=keep, identity=IDENTITY, best_by=best_by)
    run.start(resume)  # type: ignore[arg-type]
    return run


def publish(run: CheckpointStore, **scores: float) -> None:
    """Publish the checkpoint of each step (s10=0.5 for step 10), and then what its evaluation found."""
    for name, score in scores.items():
        step = int(name[1:])
        run.publish(checkpoint(step))
        run.complete(step, f"card {step}".encode(), score)


def kept(store: Store) -> list[int | None]:
    return [step_of(folder) for folder in read_latest(store)["checkpoints"]]


def test_the_best_stays_until_a_better_one_comes(store: Store) -> None:
    run = start(store)
    publish(run, s10=0.5, s20=0.9, s30=0.1, s40=float("nan"))
    assert kept(store) == [20, 40] and require_whole(store) == 40
    assert read_latest(store)["best"] == {
        "path": "iter_0000020",
        "step": 20,
        "metric": "eval_score",
        "value": 0.9,
        "measured_by": "",
        "adapter_sha256": Manifest.from_bytes(store.get(f"{JOB}/iter_0000020/{MANIFEST}") or b"").adapter_sha256,
    }
    assert len(read_latest(store)["best"]["adapter_sha256"]) == 64
    assert store.get(f"{JOB}/iter_0000020/lora_adapter/README.md") == b"card 20"
    publish(run, s50=0.9, s60=0.95, s70=0.2)
    assert kept(store) == [60, 70], "a tie leaves the earlier one, and what was best before goes"
    assert sorted(store.folders(JOB)) == ["iter_0000060", "iter_0000070"]


def test_a_later_run_knows_the_best_and_another_metric_forgets_it(store: Store) -> None:
    publish(start(store), s10=0.5, s20=0.9, s30=0.1)
    publish(start(store), s40=0.6)
    assert kept(store) == [20, 40]
    publish(start(store, BestBy("eval_loss", largest=False)), s50=0.7, s60=0.8)
    assert kept(store) == [50, 60] and read_latest(store)["best"]["metric"] == "eval_loss"
    publish(start(store, resume="Never"), s5=0.1)
    assert kept(store) == [5] and read_latest(store)["best"]["step"] == 5


EASY, HARD = (BestBy("eval_score", True, "", digest) for digest in ("easy rows", "hard rows"))


def trained(store: Store, by: BestBy, tmp_path: Path, earlier: dict[int, float], **scores: float) -> list[str]:
    """Continue a training: compare what earlier runs recorded, publish and evaluate steps. Returns the warnings."""
    run = CheckpointStore(store, JOB, keep=9, identity=IDENTITY, best_by=by)
    warnings = run.start("Auto").warnings
    uploader = BackgroundUploader(run, tmp_path)
    for step, score in earlier.items():
        uploader.complete(Evaluated(step, None, score))
    for name, score in scores.items():
        uploader.submit(checkpoint(int(name[1:]), evaluations={by.evaluation: by.measured_by}))
        uploader.complete(Evaluated(int(name[1:]), b"card", score))
    uploader.drain(60)
    return list(warnings)


def test_values_of_two_evaluations_are_never_compared(store: Store, tmp_path: Path) -> None:
    assert trained(store, EASY, tmp_path, {}, s10=0.95, s20=0.9) == []
    (warning,) = trained(store, HARD, tmp_path, {10: 0.95, 20: 0.9}, s30=0.3, s40=0.6)
    assert "step 10 was the best with eval_score 0.95, but the rows, rewards or sampling" in warning
    assert {key: value for key, value in read_latest(store)["best"].items() if key != "adapter_sha256"} == {
        "path": "iter_0000040",
        "step": 40,
        "metric": "eval_score",
        "value": 0.6,
        "measured_by": "hard rows",
    }
    assert trained(store, HARD, tmp_path, {10: 0.95, 20: 0.9, 30: 0.3, 40: 0.6}, s50=0.5) == []
    assert read_latest(store)["best"]["step"] == 40
    assert len(trained(store, EASY, tmp_path, {10: 0.95, 40: 0.99}, s60=0.1)) == 1
    assert read_latest(store)["best"]["step"] == 10, "what the first evaluation found holds again"


def test_a_best_that_is_not_comparable_is_not_named(store: Store, tmp_path: Path) -> None:
    trained(store, EASY, tmp_path, {}, s10=0.95)
    run = CheckpointStore(store, JOB, keep=9, identity=IDENTITY, best_by=HARD)
    run.start("Auto")
    run.publish(checkpoint(20))
    assert run.best is None and "best" not in read_latest(store)


def test_without_a_best_nothing_is_named_and_all_may_be_kept(store: Store) -> None:
    publish(start(store, None, keep=None), s10=0.5, s20=0.9, s30=0.1, s40=0.2, s50=0.3)
    assert kept(store) == [10, 20, 30, 40, 50]
    assert "best" not in read_latest(store)


def test_the_uploader_completes_a_checkpoint_when_it_is_published(store: Store, tmp_path: Path) -> None:
    run = start(store, keep=2)
    uploader = BackgroundUploader(run, tmp_path)
    for step, score in ((10, 0.5), (20, 0.4)):
        uploader.submit(checkpoint(step))
        uploader.complete(Evaluated(step, f"card {step}".encode(), score))
        uploader.drain(60)
    uploader.complete(Evaluated(15, b"no checkpoint has this step", 1.0))
    uploader.drain(60)
    assert uploader.best is not None and uploader.best.step == 10
    assert store.get(f"{JOB}/iter_0000020/lora_adapter/README.md") == b"card 20"


def test_a_slow_store_costs_no_best_checkpoint(s3: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path) -> None:
    store = open_store(f"s3://{bucket}", s3.secret(proxy.url))
    uploader = BackgroundUploader(start(store, keep=1), tmp_path)

    def train() -> None:
        for step, score in ((10, 0.9), (20, 0.95), (30, 0.1)):
            uploader.submit(checkpoint(step))
            uploader.complete(Evaluated(step, f"card {step}".encode(), score))

    hold = proxy.hold(method="PUT", path="iter_0000010")
    trained = threading.Thread(target=train)
    trained.start()
    assert hold.arrived.wait(30)
    hold.release()
    trained.join(10)
    uploader.drain(60)
    assert uploader.best is not None and uploader.best.step == 20
    assert kept(store) == [20, 30]


@pytest.mark.parametrize("at_once", [True, False], ids=["taken with its checkpoint", "taken alone"])
def test_an_evaluation_that_hangs_is_not_a_lost_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    run, may_publish, may_end = start(LocalStore(tmp_path / "store")), threading.Event(), threading.Event()
    publish_now, published = run.publish, threading.Semaphore(0)

    def publish_later(one: Checkpoint) -> Published:
        assert may_publish.wait(10)
        return publish_now(one)

    monkeypatch.setattr(run, "publish", publish_later)
    monkeypatch.setattr(run, "complete", lambda *_: may_end.wait(60))
    uploader = BackgroundUploader(run, tmp_path / "unpublished", lambda _: published.release())
    uploader.submit(checkpoint(10))
    if at_once:
        uploader.submit(checkpoint(20))  # it waits for the first one, so that its evaluation comes first
    uploader.complete(Evaluated(20 if at_once else 10, b"card", 0.5))
    may_publish.set()
    for _ in range(1 + at_once):
        assert published.acquire(timeout=60)
    try:
        for _ in range(2):
            with pytest.raises(
                StorageError, match=r"last evaluation were not recorded within 0\.2 s\. All checkpoints"
            ):
                uploader.drain(0.2)
    finally:
        may_end.set()
    assert not (tmp_path / "unpublished").exists()


def test_an_evaluation_counts_before_the_next_checkpoint_is_published(
    s3: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    store = open_store(f"s3://{bucket}", s3.secret(proxy.url))
    uploader = BackgroundUploader(start(store, keep=1), tmp_path)
    hold = proxy.hold(method="PUT", path="iter_0000010")
    uploader.submit(checkpoint(10))
    assert hold.arrived.wait(30)
    uploader.complete(Evaluated(10, b"card 10", 0.9))
    uploader.submit(checkpoint(20))
    uploader.complete(Evaluated(20, b"card 20", 0.1))
    hold.release()
    uploader.drain(60)
    assert kept(store) == [10, 20]


def test_a_run_that_was_fenced_off_completes_nothing(store: Store) -> None:
    older = start(store)
    publish(older, s10=0.5)
    start(store)
    with pytest.raises(FencedError):
        older.complete(10, b"late", 0.9)
    assert store.get(f"{JOB}/iter_0000010/lora_adapter/README.md") == b"card 10"


def test_earlier_values_find_a_best_lost_with_latest_json(store: Store, tmp_path: Path) -> None:
    publish(start(store, keep=3), s10=0.5, s20=0.9, s30=0.1)
    store.delete([f"{JOB}/latest.json"])
    uploader = BackgroundUploader(start(store, keep=1), tmp_path)
    for step, score in ((10, 0.5), (20, 0.9), (30, 0.1)):
        uploader.complete(Evaluated(step, None, score))
    uploader.submit(checkpoint(40))
    uploader.drain(60)
    assert kept(store) == [20, 40] and read_latest(store)["best"]["step"] == 20
    assert store.get(f"{JOB}/iter_0000020/lora_adapter/README.md") == b"card 20", "the card stays as it was"
