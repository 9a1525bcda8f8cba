"""Publishing, keeping, resuming: on a folder and on a real S3 server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from lorarl_trainer.checkpoint import build_checkpoint
from lorarl_trainer.errors import InputError, StorageError
from lorarl_trainer.storage import LocalStore, Store
from support.checkpoints import JOB, checkpoint, checkpoints, read_latest, require_whole


def publish(store: Store, *steps: int, keep: int = 2, resume: str = "Auto", writer: str = "") -> None:
    run = checkpoints(store, keep)
    run.start(resume)
    for step in steps:
        run.publish(checkpoint(step, writer))


def folders(store: Store) -> list[str]:
    return store.folders(JOB)


def damage(store: Store, path: str, data: bytes) -> None:
    store.put(f"{JOB}/{path}", data)


def test_a_checkpoint_has_the_layout_that_the_documentation_says(store: Store) -> None:
    publish(store, 100)
    assert [entry.path for entry in store.entries()] == [
        f"{JOB}/iter_0000100/checkpoint.json",
        f"{JOB}/iter_0000100/lora_adapter/adapter_config.json",
        f"{JOB}/iter_0000100/lora_adapter/adapter_model.safetensors",
        f"{JOB}/iter_0000100/lora_adapter/lorarl_metadata.json",
        f"{JOB}/iter_0000100/trainer_state/state.json",
        f"{JOB}/iter_0000100/trainer_state/state.safetensors",
        f"{JOB}/latest.json",
    ]
    assert require_whole(store) == 100


def test_a_later_start_gets_back_exactly_what_was_published(store: Store) -> None:
    publish(store, 10, 20)
    started = checkpoints(store).start("Auto")
    assert started.epoch == 2
    assert started.warnings == ()
    assert started.found is not None
    assert started.found.checkpoint == checkpoint(20)
    assert started.found.uri == store.uri_of(f"{JOB}/iter_0000020")
    tensors = load(bytes(started.found.checkpoint.files["trainer_state/state.safetensors"]))
    assert np.array_equal(tensors["q_proj.lora_A.weight.exp_avg"], np.full((8, 4), 20, np.float32))


def test_a_large_state_lies_in_several_files_and_comes_back_in_their_order(store: Store) -> None:
    parts = [bytes([number]) * 100 for number in range(12)]
    whole = build_checkpoint(
        10, 10, adapter_config={}, adapter_tensors=b"adapter", metadata={}, state={"position": 10}, state_tensors=parts
    )
    run = checkpoints(store)
    run.start("Auto")
    run.publish(whole)
    names = [entry.path.rpartition("/")[2] for entry in store.entries(f"{JOB}/iter_0000010/trainer_state")]
    assert names == [*(f"state-{number:05d}-of-00012.safetensors" for number in range(1, 13)), "state.json"]
    found = checkpoints(store).start("Auto").found
    assert found is not None
    assert found.checkpoint.state_tensors == parts


def test_what_was_read_ahead_is_not_read_again(store: Store) -> None:
    publish(store, 10, 20)
    run = checkpoints(store)
    run.newest_whole()
    store.delete([entry.path for entry in store.entries(f"{JOB}/iter_0000020/trainer_state")])
    found = run.start("Auto").found
    assert found is not None and found.checkpoint == checkpoint(20)


def test_a_checkpoint_newer_than_what_was_read_ahead_is_resumed(store: Store) -> None:
    publish(store, 10)
    run = checkpoints(store)
    run.newest_whole()
    publish(store, 20)
    found = run.start("Auto").found
    assert found is not None and found.checkpoint == checkpoint(20)


def test_the_newest_is_found_without_reading_its_files(store: Store) -> None:
    """They may be larger than the memory of the driver's pod."""
    publish(store, 10, 20)
    store.delete([entry.path for entry in store.entries(f"{JOB}/iter_0000020/trainer_state")])
    newest = checkpoints(store).newest_unverified()
    assert newest is not None and newest.manifest.step == 20
    assert newest.checkpoint.files == {}


def test_the_first_start_has_nothing_to_go_on_from(store: Store) -> None:
    started = checkpoints(store).start("Auto")
    assert (started.epoch, started.found, started.warnings) == (1, None, ())
    assert read_latest(store)["path"] is None


def test_the_newest_are_kept_and_older_ones_deleted(store: Store) -> None:
    publish(store, 10, 20, 30, 40, keep=2)
    assert folders(store) == ["iter_0000030", "iter_0000040"]
    publish(store, 50, keep=1)
    assert folders(store) == ["iter_0000050"]
    assert require_whole(store) == 50


def test_publishing_the_same_step_again_changes_nothing(store: Store) -> None:
    publish(store, 10, 20, 20)
    assert folders(store) == ["iter_0000010", "iter_0000020"]
    assert require_whole(store) == 20


@pytest.mark.parametrize(
    ("path", "data", "fault"),
    [
        ("lora_adapter/adapter_model.safetensors", None, "adapter_model.safetensors has 215 bytes instead of 216"),
        (
            "trainer_state/state.json",
            b'{\n  "position": 21\n}\n',
            "state.json has a sha256 other than the one in checkpoint.json",
        ),
        ("checkpoint.json", b"{", "checkpoint.json is corrupt"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(
    store: Store, path: str, data: bytes | None, fault: str
) -> None:
    """The one before it is used."""
    publish(store, 10, 20)
    whole = store.get(f"{JOB}/iter_0000020/{path}") or b""
    damage(store, f"iter_0000020/{path}", whole[:-1] if data is None else data)
    run = checkpoints(store)
    started = run.start("Auto")
    assert started.found is not None
    assert started.found.checkpoint == checkpoint(10)
    assert len(started.warnings) == 1
    assert started.warnings[0].startswith(f"Skipped {store.uri_of(JOB)}/iter_0000020: ")
    assert fault in started.warnings[0]
    run.publish(checkpoint(20))
    assert require_whole(store) == 20
    assert len(folders(store)) == 2, "the damaged one is deleted once there is a better one"
    assert checkpoints(store).start("Auto").warnings == ()


def test_where_no_checkpoint_is_whole_a_person_decides(store: Store) -> None:
    publish(store, 10)
    damage(store, "iter_0000010/trainer_state/state.safetensors", b"")
    with pytest.raises(StorageError, match=r"no checkpoint is whole.*state\.safetensors has 0 bytes.*resume: Never"):
        checkpoints(store).start("Auto")
    publish(store, 5, resume="Never")
    assert require_whole(store) == 5


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b"{}", b'{"epoch": 3}', b"\xff\xfe"])
def test_a_garbage_latest_json_is_reported_and_the_folders_are_used(store: Store, garbage: bytes) -> None:
    publish(store, 10, 20)
    publish(store, 30)
    damage(store, "latest.json", garbage)
    run = checkpoints(store)
    started = run.start("Auto")
    assert started.found is not None
    assert started.found.checkpoint == checkpoint(30)
    assert started.epoch == 3, "the epochs go on"
    assert len(started.warnings) == 1
    assert f"{JOB}/latest.json is corrupt" in started.warnings[0]
    assert require_whole(store) == 30, "mended at once"
    run.publish(checkpoint(40))
    assert require_whole(store) == 40
    assert folders(store) == ["iter_0000030", "iter_0000040"]


@pytest.mark.parametrize("name", ["", "..", "notes", 7])
def test_a_latest_json_cannot_make_us_delete_anything_but_checkpoints(store: Store, name: object) -> None:
    publish(store, 10)
    damage(store, "notes/mine.txt", b"x")
    damage(store, "latest.json", json.dumps({**read_latest(store), "deleting": [name]}).encode())
    publish(store, 20)
    assert store.get(f"{JOB}/notes/mine.txt") == b"x"
    assert folders(store) == ["iter_0000010", "iter_0000020", "notes"]


def test_a_latest_json_that_was_deleted_is_reported_too(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    publish(store, 10)
    (tmp_path / JOB / "latest.json").unlink()
    started = checkpoints(store).start("Auto")
    assert started.found is not None
    assert "latest.json is missing" in started.warnings[0]


def test_a_latest_json_damaged_while_a_run_goes_on_is_written_over(store: Store) -> None:
    run = checkpoints(store)
    run.start("Auto")
    run.publish(checkpoint(10))
    damage(store, "latest.json", b"garbage")
    run.publish(checkpoint(20))
    assert require_whole(store) == 20


def test_what_a_killed_run_left_behind_is_harmless(store: Store) -> None:
    publish(store, 10)
    damage(
        store, "iter_0000020/lora_adapter/adapter_config.json", checkpoint(20).files["lora_adapter/adapter_config.json"]
    )
    damage(store, "iter_0000030/lora_adapter/adapter_model.safetensors", b"half")
    run = checkpoints(store)
    started = run.start("Auto")
    assert started.found is not None
    assert (started.found.manifest.step, started.warnings) == (10, ())
    run.publish(checkpoint(20))
    assert folders(store) == ["iter_0000010", "iter_0000020", "iter_0000030"], "the same bytes: the leftover is used"
    run.publish(checkpoint(30))
    assert require_whole(store) == 30
    assert "iter_0000030" not in folders(store), "other bytes: never written over, but left aside and deleted"
    assert store.folders(JOB)[-1].startswith("iter_0000030-")


def test_a_whole_checkpoint_that_was_never_published_is_reused(store: Store) -> None:
    """It is taken as it is when training reaches its step."""
    publish(store, 10)
    before = store.get(f"{JOB}/latest.json") or b""
    publish(store, 20)
    store.put(f"{JOB}/latest.json", before)  # as if killed just before the last write
    assert require_whole(store) == 10
    publish(store, 20, 30)
    assert folders(store) == ["iter_0000020", "iter_0000030"]


def test_another_training_is_not_gone_on_with_and_nothing_is_claimed(store: Store) -> None:
    publish(store, 10)
    before = read_latest(store)
    run = checkpoints(store, **{"adapter.rank": 16, "trainer.seed": 1})
    with pytest.raises(InputError) as refused:
        run.start("Auto")
    message = str(refused.value)
    assert message.startswith("spec.checkpoint.resume: got Auto, but the checkpoint")
    assert "(adapter.rank was 8, is 16; trainer.seed was 0, is 1)" in message
    for hint in ("spec.checkpoint.resume: Never", "another spec.checkpoint.uri", "another metadata.name"):
        assert hint in message
    assert read_latest(store) == before, "a running job is not fenced off by a manifest that does not fit"


def test_an_identity_that_reads_back_as_other_types_is_still_the_same(store: Store) -> None:
    publish(store, 10)
    assert checkpoints(store, **{"adapter.targetModules": ("all-linear",)}).start("Auto").found is not None


def test_never_deletes_the_old_only_after_its_first_publication(store: Store) -> None:
    """`resume: Never` starts from step 0 and keeps the old checkpoints until then."""
    publish(store, 10, 20)
    run = checkpoints(store, **{"adapter.rank": 16})
    started = run.start("Never")
    assert (started.found, started.epoch) == (None, 2)
    assert require_whole(store) == 20, "until then readers have the old one"
    run.publish(checkpoint(5))
    assert folders(store) == ["iter_0000005"]
    assert require_whole(store) == 5
    run.publish(checkpoint(10, "another training"))
    assert folders(store) == ["iter_0000005", "iter_0000010"], "names that are free are used"


def test_never_that_dies_before_publishing_has_lost_nothing(store: Store) -> None:
    publish(store, 10, 20)
    checkpoints(store).start("Never")
    started = checkpoints(store).start("Auto")
    assert started.found is not None
    assert (started.found.manifest.step, started.epoch) == (20, 3)


def test_other_jobs_and_other_files_are_left_alone(store: Store) -> None:
    publish(store, 5)
    store.put(f"{JOB}/notes/mine.txt", b"x")
    store.put(f"{JOB}-2/iter_0000001/checkpoint.json", b"x")
    publish(store, 10, 20, 30, keep=1)
    assert store.get(f"{JOB}/notes/mine.txt") == b"x"
    assert store.get(f"{JOB}-2/iter_0000001/checkpoint.json") == b"x"


def test_a_reader_can_load_the_adapter_with_the_plain_tools(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    publish(LocalStore(tmp_path), 100)
    latest = json.loads((tmp_path / JOB / "latest.json").read_text())
    adapter = tmp_path / JOB / latest["path"] / "lora_adapter"
    assert json.loads((adapter / "adapter_config.json").read_text())["r"] == 8
    assert list(load_file(adapter / "adapter_model.safetensors")) == ["q_proj.lora_A.weight"]
