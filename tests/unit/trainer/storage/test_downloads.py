import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import BaseModelSpec, LoRARLJobSpec
from lorarl_trainer.errors import InputError, LorarlError, StorageError
from lorarl_trainer.storage.base_model import fetch_base_model
from lorarl_trainer.storage.downloads import (
    cache_dir,
    fetch_data,
    fetch_model,
    fetch_model_config,
    local_path,
    read_generation_config,
    read_model_config,
)
from support.other_user import USER, as_a_user, open_folder
from unit.trainer.storage.folder_on_disk import FolderOnDisk, write_model

URI = "s3://bucket/model"
NAMES = ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture
def store(tmp_path, monkeypatch) -> FolderOnDisk:
    monkeypatch.setenv("LORARL_CACHE", str(tmp_path / "cache"))
    return FolderOnDisk(write_model(tmp_path / "remote"))


def fetch(store: FolderOnDisk, uri: str = URI, **options: Any) -> Path:
    return fetch_model(BaseModelSpec(uri=uri), secret={}, open_folder=store.open, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refused(folder: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        fetch_model(BaseModelSpec(uri=f"file:{folder}"), secret={}, open_folder=FolderOnDisk(folder).open)
    assert caught.value.field == "spec.model.uri"
    return caught.value


def test_a_local_model_is_used_in_place(tmp_path, monkeypatch):
    write_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    assert fetch(FolderOnDisk(tmp_path), f"file://{tmp_path}/model") == tmp_path / "model"
    assert (
        local_path("file:model", "spec.model.uri")
        == local_path(f"file:{tmp_path}/model", "spec.model.uri")
        == tmp_path / "model"
    )


def test_model_and_data_of_a_claim_are_used_in_place(tmp_path, monkeypatch):
    monkeypatch.setattr("lorarl_trainer.storage.uri.CLAIMS_FOLDER", str(tmp_path))
    write_model(tmp_path / "models/base")
    write_model(tmp_path / "whole-claim")
    store = FolderOnDisk(tmp_path)
    assert fetch(store, "pvc://models/base") == tmp_path / "models/base"
    assert fetch(store, "pvc://whole-claim") == tmp_path / "whole-claim"
    file = fetch_data("pvc://models/a/b.csv", field="spec.data.train.uri", secret={}, open_folder=store.open)
    assert file == tmp_path / "models/a/b.csv"
    assert store.downloads() == []


def test_a_claim_that_is_not_mounted_is_told_with_the_mend(store):
    with pytest.raises(InputError) as caught:
        fetch(store, "pvc://models/base")
    assert str(caught.value) == (
        "spec.model.uri: got pvc://models/base, which is not mounted, "
        "expected a PersistentVolumeClaim mounted at /mnt/pvc/models. "
        "Outside a cluster, name a folder on this machine: file:PATH."
    )


def test_a_remote_model_is_downloaded_once_and_without_what_is_not_needed(store):
    for name in (
        "consolidated.safetensors",
        "pytorch_model.bin",
        "README.md",
        "original/config.json",
        "onnx/model.safetensors",
    ):
        (store.root / name).parent.mkdir(exist_ok=True)
        (store.root / name).write_text("not needed")
    (store.root / "chat_template.jinja").write_text("needed")
    folder = fetch(store)
    assert folder.parent == cache_dir() / "models"
    assert names(folder) == ["chat_template.jinja", *NAMES]
    assert fetch(store) == folder
    assert store.downloads() == ["chat_template.jinja", *NAMES]


def test_a_model_that_changed_at_the_same_uri_is_downloaded_anew(store):
    before = fetch(store)
    (store.root / "config.json").write_text('{"model_type": "llama"}')
    after = fetch(store)
    assert read_model_config(before) == {"model_type": "qwen3"}
    assert read_model_config(after) == {"model_type": "llama"}


PROGRAM = """
import sys
from pathlib import Path
from unit.trainer.storage.folder_on_disk import FolderOnDisk
from lorarl_api.v1alpha1 import BaseModelSpec
from lorarl_trainer.storage.downloads import fetch_model
store = FolderOnDisk(Path(sys.argv[1]), wait_before="model.safetensors")
print(fetch_model(BaseModelSpec(uri="s3://bucket/model"), secret={}, open_folder=store.open))
"""


def start(store: FolderOnDisk) -> subprocess.Popen[str]:
    path = f"{Path(__file__).parents[3]}:{os.environ.get('PYTHONPATH', '')}"
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(store.root)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def wait_for(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def test_processes_that_ask_at_the_same_time_share_one_download(store, tmp_path):
    processes = [start(store) for _ in range(3)]
    wait_for((tmp_path / "waiting").exists)
    (tmp_path / "go").touch()
    folders = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert folders == {str(fetch(store))}
    assert store.downloads() == NAMES


def test_a_killed_download_resumes_where_it_was_and_is_never_used_half(store, tmp_path):
    process = start(store)
    wait_for((tmp_path / "waiting").exists)
    assert not [path for path in (cache_dir() / "models").iterdir() if path.is_dir() and path.suffix != ".partial"]
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    folder = fetch(store)
    assert store.downloads() == NAMES
    assert names(folder) == NAMES
    assert (folder / "model.safetensors").read_bytes() == (store.root / "model.safetensors").read_bytes()


def test_a_file_that_came_short_is_not_used(store):
    class Truncating(FolderOnDisk):
        def download_file(self, path: str, target: Path, *arrived: Callable[[int], None]) -> None:
            super().download_file(path, target, *arrived)
            os.truncate(target, 1)

    with pytest.raises(LorarlError, match=r"config.json: got 1 bytes, expected 23 as listed"):
        fetch(Truncating(store.root))
    assert read_model_config(fetch(store)) == {"model_type": "qwen3"}


def test_bytes_are_told_as_they_arrive_and_a_finished_download_has_none(store):
    told: list[tuple[str, int, int]] = []
    fetch(store, on_bytes=lambda *of: told.append(of))
    (what,) = {what for what, _, _ in told}
    assert what.startswith("s3://")
    assert (told[0][1:], told[-1][1:]) == ((0, 10_025), (10_025, 10_025))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    told.clear()
    fetch(store, on_bytes=lambda *of: told.append(of))
    assert told == []


def test_a_full_disk_says_how_much_is_needed_and_where_to_go(store):
    class FullDisk(FolderOnDisk):
        def download_file(self, path: str, target: Path, *arrived: Callable[[int], None]) -> None:
            super().download_file(path, target, *arrived)
            with Path("/dev/full").open("wb", buffering=0) as full:
                full.write(b"x")

    with pytest.raises(
        LorarlError, match=r"^spec.model.uri: no space left for s3://.*10,025 bytes are needed.*LORARL_CACHE"
    ):
        fetch(FullDisk(store.root))


def test_a_prefix_without_a_model_is_refused(store, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="which contains no model"):
        fetch(FolderOnDisk(tmp_path / "empty"))


def test_a_remote_file_is_downloaded_once_and_a_local_one_used_in_place(store, tmp_path):
    (store.root / "train.jsonl").write_text("{}\n")
    options = {"field": "spec.data.train.uri", "secret": {}, "open_folder": store.open}
    for _ in range(2):
        path = fetch_data("s3://bucket/data/train.jsonl", **options)
        assert (path.name, path.read_text()) == ("train.jsonl", "{}\n")
    assert store.downloads() == ["train.jsonl"]
    assert fetch_data(f"file:{tmp_path}/a.csv", **options) == tmp_path / "a.csv"
    with pytest.raises(InputError, match=r"spec.data.train.uri: got s3://bucket/data/none.jsonl, which does not exist"):
        fetch_data("s3://bucket/data/none.jsonl", **options)


def test_a_folder_that_is_no_model_is_refused_with_what_it_lacks(tmp_path):
    model = write_model(tmp_path / "model")
    assert "is not a folder" in refused(tmp_path / "none").got
    assert "is not a folder" in refused(model / "config.json").got
    (model / "tokenizer.json").unlink()
    assert "no tokenizer" in refused(model).got
    (model / "model.safetensors").unlink()
    assert "no *.safetensors weights" in refused(model).got
    (model / "config.json").write_text("[]")
    assert "JSON list" in refused(model).got
    (model / "config.json").write_text("{")
    assert "cannot be read" in refused(model).got
    (model / "config.json").unlink()
    assert "no config.json" in refused(model).got


def test_a_shard_that_is_missing_is_named(tmp_path):
    model = write_model(tmp_path / "model")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "lacks model-1.safetensors" in refused(model).got


@pytest.mark.parametrize(
    ("closed", "named"),
    [
        ("config.json", "config.json"),
        ("model.safetensors", "model.safetensors"),
        ("tokenizer.json", "tokenizer.json"),
        ("", ""),
        ("..", ""),
    ],
)
def test_an_unreadable_file_or_folder_is_named_with_user_and_command(closed, named):
    with open_folder() as folder:
        model = write_model(folder / "models" / "tiny")
        (model / closed).chmod(0)
        try:
            error = as_a_user(refused, model)
        finally:
            (model / closed).chmod(0o755)
    assert error.got.startswith(f"file:{model}, but {model / named} cannot be read on ")
    assert error.got.endswith(" (Permission denied)")
    assert error.expected == f"files that user {USER} can read"
    assert f"chmod -R a+rX {model}" in error.hint


def test_a_folder_that_can_be_entered_and_not_listed_is_not_called_empty():
    with open_folder() as folder:
        model = write_model(folder / "model")
        model.chmod(0o111)
        try:
            assert f"but {model} cannot be read" in as_a_user(refused, model).got
        finally:
            model.chmod(0o755)


def test_what_is_no_file_and_a_disk_that_fails_are_told(tmp_path):
    model = write_model(tmp_path / "model")
    weights = model / "model.safetensors"
    weights.unlink()
    weights.symlink_to("../blobs/1234")
    assert f"but {weights} cannot be read" in refused(model).got
    assert "cp -rL" in refused(model).hint
    weights.unlink()
    weights.symlink_to("/proc/self/mem")  # whose first byte the kernel cannot give
    with pytest.raises(StorageError, match=r"\(Input/output error\)\. Check the disk"):
        fetch(FolderOnDisk(model), f"file:{model}")
    weights.unlink()
    weights.mkdir()
    assert "(Is a directory)" in refused(model).got


def test_what_cannot_be_read_when_the_fingerprint_is_made_is_told_as_such(tmp_path):
    model = write_model(tmp_path / "model")
    (model / "consolidated.safetensors").mkdir()
    spec = {
        "model": {"uri": f"file:{model}"},
        "adapter": {"rank": 4, "targetModules": ["all-linear"]},
        "algorithm": {"type": "sft"},
    }
    spec |= {"data": {"train": {"uri": "file:train.jsonl"}}, "checkpoint": {"uri": "file:checkpoints"}}
    with pytest.raises(
        InputError, match=r"but .*/consolidated.safetensors cannot be read on .* \(Is a directory\)"
    ) as caught:
        fetch_base_model(LoRARLJobSpec.model_validate(spec), {})
    assert caught.value.field == "spec.model.uri"


def test_only_the_configuration_of_a_remote_model_is_downloaded(store):
    model = BaseModelSpec(uri=URI)
    content = json.loads((store.root / "config.json").read_text())
    assert fetch_model_config(model, secret={}, open_folder=store.open) == content
    assert store.downloads() == ["config.json"]
    (store.root / "config.json").unlink()
    with pytest.raises(InputError, match="s3://bucket/model, which contains no model"):
        fetch_model_config(model, secret={}, open_folder=store.open)


def test_the_configuration_of_a_local_model_is_read_in_place(tmp_path):
    model = write_model(tmp_path / "model")
    read = [json.loads((model / "config.json").read_text())]
    read.append(fetch_model_config(BaseModelSpec(uri=f"file:{model}"), secret={}, open_folder=FolderOnDisk(model).open))
    assert read[0] == read[1]
    with pytest.raises(InputError, match="which is not a folder"):
        fetch_model_config(BaseModelSpec(uri=f"file:{model}-2"), secret={}, open_folder=FolderOnDisk(model).open)


def test_a_generation_config_is_optional_but_not_garbage(tmp_path):
    assert read_generation_config(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert read_generation_config(tmp_path) == {"eos_token_id": [1, 2]}
    (tmp_path / "generation_config.json").write_bytes(b"\xff")
    with pytest.raises(InputError, match="cannot be read"):
        read_generation_config(tmp_path)


def test_a_file_uri_with_a_host_says_how_to_write_it():
    with pytest.raises(InputError, match="Write file:models/tiny"):
        local_path("file://models/tiny", "spec.model.uri")


def test_the_cache_is_under_home_unless_said_otherwise(monkeypatch, tmp_path):
    monkeypatch.delenv("LORARL_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "lorarl"
