"""What lorarl did not write is never deleted, and a job does not start among it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lorarl_trainer.checkpoint import CheckpointStore, Owner
from lorarl_trainer.checkpoint.deletion import delete_job
from lorarl_trainer.errors import FencedError, InputError
from lorarl_trainer.storage import Store
from support.checkpoints import IDENTITY, JOB, checkpoint, checkpoints, read_latest, require_whole

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DATA = ("train.jsonl", "test.jsonl", "notes/readme.md")
MEGATRON = "iter_0000005/mp_rank_00/model_optim_rng.pt"
"""Megatron's own checkpoints have folders with the same names."""


def run_of(uid: str | None, store: Store, job: str = JOB, keep: int = 2) -> CheckpointStore:
    return CheckpointStore(store, job, keep=keep, identity=IDENTITY, owner=Owner(job, uid))


def put(store: Store, *paths: str, job: str = JOB) -> None:
    for path in paths:
        store.put(f"{job}/{path}", b"someone's work")


def paths(store: Store, job: str = JOB) -> list[str]:
    return [entry.path.removeprefix(f"{job}/") for entry in store.entries(job)]


def test_data_beside_which_a_job_never_started_stays(store: Store) -> None:
    """The data of `gsm8k` is in s3://team/gsm8k/, and checkpoint.uri is s3://team."""
    put(store, *DATA)
    with pytest.raises(FencedError, match=r"has no latest\.json, so nothing proves that lorarl wrote it"):
        delete_job(store, JOB, "mine", NOW)
    assert paths(store) == sorted(DATA)


def test_only_the_jobs_own_checkpoints_are_deleted(store: Store) -> None:
    run = run_of("mine", store)
    run.start("Auto")
    for step in (10, 20):
        run.publish(checkpoint(step))
    put(store, *DATA, MEGATRON, "iter_0000020/lora_adapter/merged/model.safetensors", "iter_notes/a")
    assert delete_job(store, JOB, "mine", NOW) == sorted(
        [*DATA, MEGATRON, "iter_0000020/lora_adapter/merged/model.safetensors", "iter_notes/a"]
    )
    assert paths(store) == delete_job_again(store)


def delete_job_again(store: Store) -> list[str]:
    """A clean-up that is repeated finds no latest.json, and deletes nothing more."""
    before = paths(store)
    with pytest.raises(FencedError):
        delete_job(store, JOB, "mine", NOW)
    return before


def test_other_jobs_below_a_jobs_folder_stay(store: Store) -> None:
    """A job named `adapters` in s3://team, where other jobs have s3://team/adapters/NAME/."""
    other = run_of("other", store, job="adapters/job-a")
    other.start("Auto")
    other.publish(checkpoint(100))
    run_of("mine", store, job="adapters").claim()
    before = paths(store, "adapters/job-a")
    assert delete_job(store, "adapters", "mine", NOW) == [f"job-a/{path}" for path in before]
    assert paths(store, "adapters/job-a") == before


def test_a_checkpoint_of_a_job_with_another_name_stays(store: Store) -> None:
    copied = run_of("mine", store, job="other")
    copied.start("Auto")
    copied.publish(checkpoint(10))
    run = run_of("mine", store)
    run.start("Auto")
    run.publish(checkpoint(20))
    for path in paths(store, "other"):
        if path.startswith("iter_"):
            store.put(f"{JOB}/{path}", store.get(f"other/{path}") or b"")
    run.publish(checkpoint(30))
    assert [path for path in paths(store) if path.startswith("iter_0000010")], "publishing deletes leftovers"
    left = delete_job(store, JOB, "mine", NOW)
    assert left == paths(store)
    assert {path.partition("/")[0] for path in left} == {"iter_0000010"}


def test_what_a_killed_run_left_is_deleted_too(store: Store) -> None:
    run_of("mine", store).claim()
    for path in checkpoint(10).files:
        put(store, f"iter_0000010/{path}")
    put(store, "iter_0000010/lora_adapter/tokenizer.json", ".write-check-0a1b2c3d/empty")
    assert delete_job(store, JOB, "mine", NOW) == []
    assert paths(store) == []


@pytest.mark.parametrize("uid", ["another", None])
def test_a_folder_that_this_job_never_claimed_stays(store: Store, uid: str | None) -> None:
    run = run_of(uid, store)
    run.start("Auto")
    run.publish(checkpoint(10))
    before = paths(store)
    with pytest.raises(FencedError, match=f"uid {uid or 'none'}, this one is mine"):
        delete_job(store, JOB, "mine", NOW)
    assert paths(store) == before


def test_a_run_that_still_lives_cannot_publish_into_a_deleted_folder(store: Store) -> None:
    run = run_of("mine", store)
    run.start("Auto")
    run.publish(checkpoint(10))
    interrupted = store.delete
    store.delete = lambda paths: None if f"{JOB}/latest.json" in paths else interrupted(paths)
    delete_job(store, JOB, "mine", NOW)
    with pytest.raises(FencedError, match="lorarl purge"):
        run.publish(checkpoint(20))


def test_publishing_deletes_no_file_of_anyone_else(store: Store) -> None:
    run = checkpoints(store, keep=1)
    run.start("Auto")
    run.publish(checkpoint(10))
    put(store, MEGATRON, "iter_0000010/lora_adapter/merged/model.safetensors")
    for step in (20, 30):
        run.publish(checkpoint(step))
    assert require_whole(store) == 30
    left = [path for path in paths(store) if not path.startswith("iter_0000030/")]
    assert left == [MEGATRON, "iter_0000010/lora_adapter/merged/model.safetensors", "latest.json"]


@pytest.mark.parametrize("there", [DATA, (MEGATRON,), ("latest.json",), ("iter_0000010/checkpoint.json",)])
def test_a_folder_with_foreign_objects_is_refused(store: Store, there: tuple[str, ...]) -> None:
    put(store, *there)
    with pytest.raises(InputError) as refused:
        checkpoints(store).start("Auto")
    message = str(refused.value)
    assert message.startswith(f"spec.checkpoint.uri: got {store.uri}, whose folder {JOB}/ holds objects that lorarl")
    assert sorted(there)[0] in message
    assert "another metadata.name or spec.checkpoint.uri" in message
    assert paths(store) == sorted(there), "nothing was claimed"


def test_many_foreign_objects_are_counted(store: Store) -> None:
    put(store, *(f"data-{number}" for number in range(9)))
    with pytest.raises(InputError, match="data-0, data-1, data-2 and 6 more"):
        checkpoints(store).start("Never")


def test_a_note_left_in_a_running_jobs_folder_does_not_end_it(store: Store) -> None:
    """Its next attempt is warned. A new job of the same name, which someone applies now, is refused."""
    run_of("mine", store).start("Auto")
    put(store, "notes.txt")
    (warning,) = run_of("mine", store).start("Auto").warnings
    assert "notes.txt" in warning
    with pytest.raises(InputError, match=r"notes\.txt"):
        run_of("new", store).start("Auto")
    assert read_latest(store)["jobUid"] == "mine"


def test_checkpoints_without_latest_json_are_still_the_jobs_own(store: Store) -> None:
    """As after a copy by hand, which docs/checkpoints.md describes."""
    run = checkpoints(store)
    run.start("Auto")
    run.publish(checkpoint(10))
    store.delete([f"{JOB}/latest.json"])
    started = checkpoints(store).start("Auto")
    assert started.found is not None and started.found.manifest.step == 10
