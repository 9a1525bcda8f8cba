"""What a run looks at before it starts: room on the disks, and a folder that takes its files. Nothing is written."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.errors import StorageError
from lorarl_trainer.launch.room import checkpoint_bytes, holds_no_files, require_room, require_run_folder, room_lines
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.planning.adapter_size import AdapterSize
from support.other_user import as_a_user, open_folder
from unit.contract.manifests import manifest
from unit.trainer.planning.shapes import SHAPES

SIZES = sizes_of(SHAPES["0.5B"])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", tmp_path], capture_output=True, text=True)
    if mount.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mount.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def fill(disk: Path, leave: int) -> None:
    (disk / "filler").write_bytes(b"x" * ((64 << 20) - leave))


def test_a_run_folder_on_a_full_disk_is_refused(disk: Path) -> None:
    require_run_folder(disk / "out" / "job")
    fill(disk, leave=1 << 20)
    with pytest.raises(StorageError) as refused:
        require_run_folder(disk / "out" / "job")
    assert str(refused.value) == (
        f"--out: {disk}/out/job: the disk is full: a run's own files need 10.0 MB, 1.0 MB are free. Free some, or use "
        "another folder."
    )
    assert not (disk / "out").exists()


def test_a_checkpoint_has_the_state_of_a_critic_and_of_an_average_too() -> None:
    def size(changes: dict[str, object]) -> int:
        return checkpoint_bytes(LoRARLJob.model_validate(manifest(changes)), SIZES)

    plain = LoRARLJob.model_validate(manifest({}))
    trainable = AdapterSize.of(plain.spec.adapter, SIZES).trainable(ranks=1)
    average = {"spec.algorithm.klCoefficient": 0.1, "spec.algorithm.kl": {"reference": "average"}}
    assert size({"spec.algorithm": {"type": "ppo"}}) - size({}) == 12 * trainable
    assert size(average) - size({}) == 4 * trainable


def test_a_disk_without_room_for_one_checkpoint_is_refused(disk: Path) -> None:
    job = LoRARLJob.model_validate(manifest({"spec.checkpoint.uri": f"file://{disk}/ck", "spec.adapter.rank": 1}))
    one = checkpoint_bytes(job, SIZES)
    fill(disk, leave=one + (1 << 20))
    require_room(job, SIZES)
    assert room_lines(job, SIZES)[-1].startswith("warning: the disk has too little space")
    fill(disk, leave=one // 2)
    with pytest.raises(StorageError) as refused:
        require_room(job, SIZES)
    assert f"spec.checkpoint.uri: {disk}/ck: the disk is full: one checkpoint needs about " in str(refused.value)
    assert "are free. Free some, or use another spec.checkpoint.uri." in str(refused.value)


@pytest.mark.parametrize("what", ["a folder", "a log"])
def test_logs_that_cannot_be_written_are_refused(what: str) -> None:
    with open_folder() as folder:
        out = folder / "out"
        (out / "logs").mkdir(parents=True)
        (out / "logs" / "rewards.log").write_text("of root\n")
        out.chmod(0o777)
        (out / "logs").chmod(0o755 if what == "a folder" else 0o777)
        with pytest.raises(StorageError, match=r"^--out: .*logs.* permission denied for user|cannot be written"):
            as_a_user(require_run_folder, out)
        (out / "logs").chmod(0o777)
        (out / "logs" / "rewards.log").unlink()
        as_a_user(require_run_folder, out)


def test_logs_that_are_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    with pytest.raises(StorageError, match=r"^--out: .*logs: cannot write: .*logs is not a folder\. Use another"):
        require_run_folder(tmp_path)


def test_a_file_system_that_holds_no_files_is_not_called_full() -> None:
    assert holds_no_files(Path("/proc/ck")) and not holds_no_files(Path("/nowhere/ck"))
    job = LoRARLJob.model_validate(manifest({"spec.checkpoint.uri": "file:/proc/ck"}))
    with pytest.raises(StorageError, match=r"^spec\.checkpoint\.uri: /proc/ck holds no files, as /proc\. Use another"):
        require_room(job, SIZES)
