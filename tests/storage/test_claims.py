"""Two jobs never share a folder, though they have the same manifest and bucket. A job that moves on keeps its own."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta

import pytest

from lorarl_trainer.checkpoint import CheckpointStore, Owner
from lorarl_trainer.errors import FencedError, InputError
from lorarl_trainer.storage import Store
from support.checkpoints import IDENTITY, JOB, checkpoint, read_latest, require_whole

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DEV = Owner(JOB, "uid-dev", "dev", "cluster-a")
PROD = Owner(JOB, "uid-prod", "prod", "cluster-a")
ELSEWHERE = Owner(JOB, "uid-b", "dev", "cluster-b")
ANEW = Owner(JOB, "uid-new", "dev", "cluster-a")
LAPTOP = Owner(JOB)


def run_of(owner: Owner, store: Store, now: datetime = NOW) -> CheckpointStore:
    return CheckpointStore(store, owner.name, keep=2, identity=IDENTITY, owner=owner, now=lambda: now)


def started(owner: Owner, store: Store, now: datetime = NOW) -> CheckpointStore:
    run = run_of(owner, store, now)
    run.start("Auto")
    return run


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (PROD, "job gsm8k in namespace dev (uid uid-dev, last started at 2026-03-01T12:00:00"),
        (ELSEWHERE, "job gsm8k in namespace dev of another cluster (uid uid-dev"),
        (LAPTOP, "job gsm8k in namespace dev (uid uid-dev"),
    ],
)
def test_a_folder_that_a_job_uses_is_refused_to_another(store: Store, other: Owner, named: str) -> None:
    """Before, the second resumed from the first one's checkpoints and fenced it off, and so on in turn."""
    first = started(DEV, store)
    first.publish(checkpoint(10))
    before = read_latest(store)
    for resume in ("Auto", "Never"):
        with pytest.raises(InputError) as refused:
            run_of(other, store, NOW + timedelta(days=30)).start(resume)
        message = str(refused.value)
        assert message.startswith("spec.checkpoint.uri: got ")
        assert named in message
        assert f"{store.uri}/{JOB}/latest.json" in message
    with pytest.raises(InputError):
        run_of(other, store).require_own_folder()
    assert read_latest(store) == before
    first.publish(checkpoint(20))
    assert require_whole(store) == 20


def test_the_claim_says_whose_the_folder_is(store: Store) -> None:
    started(DEV, store)
    latest = read_latest(store)
    assert [latest[key] for key in ("job", "namespace", "jobUid", "cluster")] == [JOB, "dev", "uid-dev", "cluster-a"]
    assert latest["finishedAt"] is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(DEV, DEV, id="the next attempt"),
        pytest.param(DEV, ANEW, id="deleted and applied again"),
        pytest.param(LAPTOP, DEV, id="from lorarl run to a cluster"),
        pytest.param(LAPTOP, LAPTOP, id="lorarl run again"),
        pytest.param(Owner(JOB, "uid-old", "dev"), ANEW, id="its cluster was not recorded"),
    ],
)
def test_the_newest_start_of_a_job_takes_over(store: Store, before: Owner, after: Owner) -> None:
    older = started(before, store)
    older.publish(checkpoint(10))
    newer = run_of(after, store)
    newer.require_own_folder()
    found = newer.start("Auto").found
    assert found is not None and found.manifest.step == 10
    with pytest.raises(FencedError, match=f"epoch 2 took over at .*{after}"):
        older.publish(checkpoint(20, "older"))
    newer.publish(checkpoint(20, "newer"))
    assert require_whole(store) == 20


def test_the_folder_of_a_job_that_finished_is_free_after_an_hour(store: Store) -> None:
    first = started(DEV, store)
    first.publish(checkpoint(10))
    first.finish()
    assert read_latest(store)["finishedAt"] == "2026-03-01T12:00:00.000000Z"
    with pytest.raises(InputError, match=r"namespace dev \(uid uid-dev, finished at 2026-03-01T12:00:00"):
        started(PROD, store, NOW + timedelta(minutes=59))
    second = started(PROD, store, NOW + timedelta(minutes=61))
    assert second.epoch == 2
    assert read_latest(store)["finishedAt"] is None, "it is in use again"
    with pytest.raises(InputError, match="namespace prod"):
        started(DEV, store, NOW + timedelta(days=1))


def test_a_claim_of_an_older_version_blocks_no_one(store: Store) -> None:
    started(DEV, store).publish(checkpoint(10))
    latest = read_latest(store)
    older = {key: value for key, value in latest.items() if key not in ("job", "namespace", "cluster", "finishedAt")}
    store.put(f"{JOB}/latest.json", json.dumps(older).encode())
    found = run_of(PROD, store).start("Auto").found
    assert found is not None and found.manifest.step == 10


def test_without_latest_json_another_job_continues_as_the_message_says(store: Store) -> None:
    started(DEV, store).publish(checkpoint(10))
    store.delete([f"{JOB}/latest.json"])
    found = run_of(PROD, store).start("Auto").found
    assert found is not None and found.manifest.step == 10


def test_of_two_jobs_at_the_same_moment_one_is_refused(store: Store) -> None:
    refused: list[InputError] = []

    def start(owner: Owner) -> None:
        try:
            run_of(owner, store).claim()
        except InputError as error:
            refused.append(error)

    threads = [threading.Thread(target=start, args=[Owner(JOB, f"uid-{name}", name, "a")]) for name in "abcde"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(refused) == 4
    winner = read_latest(store)["namespace"]
    assert all(f"job gsm8k in namespace {winner} (" in str(error) for error in refused)


@pytest.mark.parametrize("when", ["yesterday", "2026-03-01T12:00:00"])
def test_a_time_that_cannot_be_read_makes_latest_json_corrupt(store: Store, when: str) -> None:
    started(DEV, store).publish(checkpoint(10))
    store.put(f"{JOB}/latest.json", json.dumps({**read_latest(store), "finishedAt": when}).encode())
    (warning,) = run_of(DEV, store).start("Auto").warnings
    assert "latest.json is corrupt" in warning
