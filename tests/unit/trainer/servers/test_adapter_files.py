"""An adapter's files on another machine are those that were written, or an error."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from lorarl_trainer.servers.adapter_files import AdapterFiles, DeliveredVersions


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
    versions, third = DeliveredVersions(there), version(tmp_path, 3)

    async def whole() -> None:
        for number in (1, 2):
            await versions.deliver(f"v-{number}", version(tmp_path, number), kept=["v-1"])
        assert names(there) == ["v-1", "v-2"]
        assert await versions.deliver("v-3", third, kept=["v-2"]) == there / "v-3"

    asyncio.run(whole())
    assert names(there) == ["v-2", "v-3"]
    assert AdapterFiles.read(there / "v-3") == third


def test_a_delivery_that_is_given_up_removes_nothing_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is writing when its caller gives up, and ends while the next one is there or waits."""
    there, may_go_on = tmp_path / "served", threading.Event()
    versions, is_writing, write = DeliveredVersions(there), threading.Event(), AdapterFiles.write

    def slow(files: AdapterFiles, folder: Path) -> None:
        write(files, folder)
        if folder.name == "v-1":
            is_writing.set()
            assert may_go_on.wait(20)

    monkeypatch.setattr(AdapterFiles, "write", slow)

    async def whole() -> None:
        given_up = asyncio.create_task(versions.deliver("v-1", version(tmp_path, 1), kept=()))
        assert await asyncio.to_thread(is_writing.wait, 20)
        given_up.cancel()
        newer = asyncio.create_task(versions.deliver("v-2", version(tmp_path, 2), kept=["v-1"]))
        await asyncio.sleep(0)  # it has begun
        may_go_on.set()
        await newer

    asyncio.run(whole())
    assert names(there) == ["v-1", "v-2"]


def test_what_is_there_already_is_written_again_only_if_it_differs(tmp_path: Path) -> None:
    files, folder = version(tmp_path, 1), tmp_path / "served/v-1"
    files.write(folder)
    model = folder / "adapter_model.safetensors"
    before = model.stat().st_ino
    files.write(folder)
    assert model.stat().st_ino == before
    model.write_bytes(b"cut off")
    files.write(folder)
    assert AdapterFiles.read(folder) == files


def test_a_disk_that_gives_back_something_else_is_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, write = version(tmp_path, 1), Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: write(path, data[:-1]))
    with pytest.raises(OSError, match="are not what the trainer wrote"):
        files.write(tmp_path / "served/v-1")
    assert not (tmp_path / "served/v-1").exists()
