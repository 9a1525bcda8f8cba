"""What every store promises, on a folder and on a real S3 server."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lorarl_trainer.errors import InputError, StorageError
from lorarl_trainer.storage import Entry, Store, open_store
from lorarl_trainer.storage import remote as remote_module
from support.s3_server import S3Server

MIB = 2**20


def sizes(entries: list[Entry]) -> list[tuple[str, int]]:
    return [(entry.path, entry.size) for entry in entries]


def test_what_was_put_is_read_and_an_absent_object_is_none(store: Store) -> None:
    store.put("a/b.bin", b"first")
    store.put("a/b.bin", b"second")
    assert store.get("a/b.bin") == b"second"
    assert store.get("a/c.bin") is None
    assert store.get("nothing/here") is None


def test_an_empty_object_is_an_object(store: Store) -> None:
    store.put("empty", b"")
    assert store.get("empty") == b""
    assert sizes(store.entries()) == [("empty", 0)]


def test_put_if_absent_never_writes_over(store: Store) -> None:
    assert store.put_if_absent("a", b"mine")
    assert not store.put_if_absent("a", b"theirs")
    assert store.put_if_absent("a", b"mine"), "the same bytes are as good as written"
    assert store.get("a") == b"mine"


def test_compare_and_swap_takes_only_the_version_that_was_read(store: Store) -> None:
    first = store.replace_if("latest", b"1", None)
    assert first is not None
    assert store.replace_if("latest", b"0", None) is None
    second = store.replace_if("latest", b"2", first)
    assert second is not None
    assert store.replace_if("latest", b"3", first) is None
    assert store.get_tagged("latest") == (b"2", second)


def test_compare_and_swap_of_an_object_that_is_gone_fails(store: Store) -> None:
    tag = store.replace_if("job/latest", b"1", None)
    store.delete(["job/latest"])
    assert store.replace_if("job/latest", b"2", tag) is None


def test_of_many_concurrent_swaps_every_one_that_succeeds_counts(store: Store) -> None:
    def increment_three_times(worker: int) -> None:
        done = 0
        while done < 3:
            found = store.get_tagged("counter")
            count = 0 if found is None else int(found[0].split()[0])
            done += store.replace_if("counter", f"{count + 1} {worker} {done}".encode(), found and found[1]) is not None

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(increment_three_times, range(6)))
    assert int((store.get("counter") or b"").split()[0]) == 18


def test_of_many_concurrent_creations_one_wins(store: Store) -> None:
    with ThreadPoolExecutor(6) as threads:
        won = list(threads.map(lambda worker: store.put_if_absent("file", b"%d" % worker), range(6)))
    assert won.count(True) == 1
    assert store.get("file") == b"%d" % won.index(True)


def test_listing_knows_folders_from_names_that_only_begin_alike(store: Store) -> None:
    for path in ("job/iter_1/a", "job/iter_1/deep/b", "job/iter_10/a", "job2/iter_1/a", "job/latest.json"):
        store.put(path, b"12345")
    assert sizes(store.entries("job/iter_1")) == [("job/iter_1/a", 5), ("job/iter_1/deep/b", 5)]
    assert store.folders("job") == ["iter_1", "iter_10"]
    assert store.folders("other") == []
    assert store.entries("other") == []


def test_deleting_leaves_the_neighbours(store: Store) -> None:
    for path in ("job/iter_1/a", "job/iter_1/deep/b", "job/iter_1/c", "job/iter_10/a"):
        store.put(path, b"x")
    store.delete(["job/iter_1/a", "job/iter_1/deep/b"])
    store.delete(["job/iter_1/a", "job/iter_1/deep/b", "job/iter_1/deep"])
    store.delete([])
    assert [entry.path for entry in store.entries()] == ["job/iter_1/c", "job/iter_10/a"]
    assert store.folders("job/iter_1") == [], "no empty folder is left on a disk"


def test_an_object_is_found_with_a_version_that_changes_with_its_content(store: Store, tmp_path: Path) -> None:
    store.put("model/weights", b"first")
    first = store.find("model/weights")
    store.put("model/weights", b"other")
    second = store.find("model/weights")
    assert first is not None and second is not None
    assert (first.path, first.size) == (second.path, second.size) == ("model/weights", 5)
    assert first.version != second.version
    assert second in store.entries("model")
    assert store.find("model/nothing") is None
    store.download_file("model/weights", tmp_path / "copies" / "weights")
    assert (tmp_path / "copies" / "weights").read_bytes() == b"other"


def test_a_folder_is_downloaded_whole(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "CHUNK_BYTES", 1000)  # so that a few kilobytes take several requests
    contents = {"model/weights.bin": bytes(range(256)) * 20, "model/deep/config.json": b"{}", "model/empty": b""}
    for path, data in contents.items():
        store.put(path, data)
    copies = store.download("model", tmp_path / "copy")
    assert {f"model/{copy.relative_to(tmp_path / 'copy')}": copy.read_bytes() for copy in copies} == contents
    assert not list((tmp_path / "copy").rglob("*.partial"))
    assert store.get("model/weights.bin") == contents["model/weights.bin"]
    assert store.download("nothing", tmp_path / "nothing") == []


@pytest.mark.parametrize("size", [0, 1000, 12 * MIB + 1])
def test_a_file_is_uploaded_whole_in_parts_where_it_is_large(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(remote_module, "CHUNK_BYTES", 5 * MIB)  # the smallest parts that S3 takes
    source = tmp_path / "model.safetensors"
    source.write_bytes(random.Random(size).randbytes(size))
    store.put("model/weights", b"older")
    store.upload_file(source, "model/weights")
    assert store.get("model/weights") == source.read_bytes()
    with pytest.raises((OSError, StorageError), match=r"nothing\.bin"):
        store.upload_file(tmp_path / "nothing.bin", "model/nothing")
    assert store.find("model/nothing") is None


def test_a_relative_file_uri_is_a_folder_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("file:out/adapters")
    store.put("a", b"x")
    assert (tmp_path / "out/adapters/a").read_bytes() == b"x"
    assert store.uri_of("a") == f"file://{tmp_path}/out/adapters/a"


def test_credentials_come_from_the_environment_when_there_is_no_secret(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in s3.secret().items():
        monkeypatch.setenv(key, value)
    store = open_store(f"s3://{bucket}")
    store.put("a", b"x")
    assert store.get("a") == b"x"


def test_a_secret_is_not_mixed_with_the_environment_of_somebody_else(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody-else")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a token of somebody else")
    store = open_store(f"s3://{bucket}", {**s3.secret(), "HF_TOKEN": "not the store's business"})
    store.put("a", b"x")
    assert store.get("a") == b"x"


def test_an_azure_store_without_an_account_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(InputError, match=r"no storage account.*AZURE_STORAGE_ACCOUNT_NAME"):
        open_store("az://container/folder", {}, field="spec.checkpoint.uri")


def test_a_google_key_that_is_none_is_refused_without_showing_it() -> None:
    with pytest.raises(InputError) as refused:
        open_store("gs://bucket/folder", {"GOOGLE_APPLICATION_CREDENTIALS": '{"private_key": "hush"}'})
    assert "GOOGLE_SERVICE_ACCOUNT_KEY" in str(refused.value)
    assert "hush" not in str(refused.value)


def test_a_store_that_can_be_written_says_so_and_keeps_nothing(store: Store) -> None:
    store.put("job/a", b"x")
    store.require_writable("job")
    assert [entry.path for entry in store.entries()] == ["job/a"]
    assert store.folders("job") == []
