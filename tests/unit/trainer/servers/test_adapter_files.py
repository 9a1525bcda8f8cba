"""An adapter's files on another machine are those that were written, or an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from lorarl_trainer.servers.adapter_files import AdapterFiles


def version(folder: Path, number: int) -> AdapterFiles:
    folder = folder / f"written-{number}"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(bytes([number]) * 1000)
    return AdapterFiles.read(folder)


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_they_arrive_whole_in_the_place_of_unused_versions(tmp_path: Path) -> None:
    there = tmp_path / "served"
    for number in (1, 2):
        version(tmp_path, number).write(there / f"v-{number}", kept=["v-1"])
    assert names(there) == ["v-1", "v-2"]
    third = version(tmp_path, 3)
    third.write(there / "v-3", kept=["v-2"])
    assert names(there) == ["v-2", "v-3"]
    assert AdapterFiles.read(there / "v-3") == third


def test_what_is_there_already_is_written_again_only_if_it_differs(tmp_path: Path) -> None:
    files, folder = version(tmp_path, 1), tmp_path / "served/v-1"
    files.write(folder, kept=())
    model = folder / "adapter_model.safetensors"
    before = model.stat().st_ino
    files.write(folder, kept=())
    assert model.stat().st_ino == before
    model.write_bytes(b"cut off")
    files.write(folder, kept=())
    assert AdapterFiles.read(folder) == files


def test_a_disk_that_gives_back_something_else_is_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, write = version(tmp_path, 1), Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: write(path, data[:-1]))
    with pytest.raises(OSError, match="are not what the trainer wrote"):
        files.write(tmp_path / "served/v-1", kept=())
    assert not (tmp_path / "served/v-1").exists()
