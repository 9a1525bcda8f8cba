"""The base model and the data from a real S3 server: what can be wrong, and that nothing half-fetched is used."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import BaseModelSpec, LoRARLJobSpec
from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.storage import RetryPolicy, open_store
from lorarl_trainer.storage.downloads import cache_dir, fetch_data, fetch_model
from lorarl_trainer.storage.upload import upload
from lorarl_trainer.workers.base_model import fetch_fitting_model
from support.fault_proxy import FOREVER, FaultProxy
from support.s3_server import S3Server
from support.stores import QUICK, STEADY
from unit.trainer.planning.shapes import SHAPES

WEIGHTS_BYTES = 3_000_000
DISK_BYTES = 2_000_000
FIELD = "spec.model.uri"


@pytest.fixture
def secret(s3: S3Server, proxy: FaultProxy) -> dict[str, str]:
    return s3.secret(proxy.url)


@pytest.fixture
def uri(s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model in a bucket, copied there by `lorarl upload` with the environment's keys."""
    monkeypatch.setenv("LORARL_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "base"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen3"}')
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"w" * WEIGHTS_BYTES)
    (tmp_path / "train.jsonl").write_text("{}\n")
    with monkeypatch.context() as environment:
        for name, value in s3.secret().items():
            environment.setenv(name, value)
        there = list(upload([model, tmp_path / "train.jsonl"], f"s3://{bucket}/mine", None))
    assert there == [
        f"s3://{bucket}/mine/{name}"
        for name in ("base/config.json", "base/model.safetensors", "base/tokenizer.json", "train.jsonl")
    ]
    return f"s3://{bucket}/mine/base"


def fetch(uri: str, secret: dict[str, str], retries: RetryPolicy = STEADY, **options: Any) -> Path:
    return fetch_model(
        BaseModelSpec(uri=uri), secret=secret, open_folder=partial(open_store, field=FIELD, retries=retries), **options
    )


def test_the_driver_fetches_all_but_weights_and_a_worker_everything(
    uri: str, secret: dict[str, str], proxy: FaultProxy
) -> None:
    small = fetch(uri, secret, weights=False)
    assert sorted(path.name for path in small.iterdir()) == ["config.json", "tokenizer.json"]
    assert not [path for _, path in proxy.requests if "model.safetensors" in path]
    whole = fetch(uri, secret)
    assert (whole / "model.safetensors").stat().st_size == WEIGHTS_BYTES
    assert whole == fetch(uri, secret)
    assert [method for method, path in proxy.requests if "model.safetensors" in path] == ["HEAD", "GET"]


def test_a_link_is_uploaded_under_its_name_and_a_broken_one_reported(tmp_path: Path) -> None:
    """As in the cache of a hub, where a model's files are links."""
    snapshot = tmp_path / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (tmp_path / "blob").write_text("{}")
    (snapshot / "config.json").symlink_to(tmp_path / "blob")
    (tmp_path / "my-model").symlink_to(snapshot)
    store = tmp_path / "store"
    assert list(upload([tmp_path / "my-model"], f"file://{store}", None)) == [f"file://{store}/my-model/config.json"]
    assert (store / "my-model" / "config.json").read_text() == "{}"
    (tmp_path / "blob").unlink()
    with pytest.raises(LorarlError, match=r"my-model/config\.json"):
        list(upload([tmp_path / "my-model"], f"file://{store}", None))


def test_nothing_is_left_out_of_an_upload_in_silence(tmp_path: Path) -> None:
    (tmp_path / "a" / "model").mkdir(parents=True)
    (tmp_path / "b" / "model" / "deep").mkdir(parents=True)
    store = tmp_path / "store"

    def told(*sources: Path) -> str:
        with pytest.raises(LorarlError) as refused:
            list(upload(sources, f"file://{store}", None))
        return str(refused.value)

    assert "model, a folder without files" in told(tmp_path / "a" / "model")
    assert "gone, which cannot be read (No such file or directory)" in told(tmp_path / "gone")
    for folder in ("a", "b"):
        (tmp_path / folder / "model" / "config.json").write_text(folder)
    assert "which would both become model/config.json" in told(tmp_path / "a" / "model", tmp_path / "b" / "model")
    assert not store.exists(), "told before anything is copied"
    # A folder behind a link is a folder; one that leads back is reported.
    (tmp_path / "a" / "model" / "more").symlink_to(tmp_path / "b" / "model")
    list(upload([tmp_path / "a" / "model"], f"file://{store}", None))
    assert (store / "model" / "more" / "config.json").read_text() == "b"
    (tmp_path / "b" / "model" / "deep" / "back").symlink_to(tmp_path / "b")
    assert "symbolic links" in told(tmp_path / "b")


def test_a_model_without_weights_is_reported_before_workers_fetch(
    uri: str, s3: S3Server, secret: dict[str, str]
) -> None:
    (s3.root / uri.removeprefix("s3://") / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"no \*\.safetensors weights"):
        fetch(uri, secret, weights=False)


def test_a_connection_that_breaks_leaves_nothing_that_is_used(
    uri: str, secret: dict[str, str], proxy: FaultProxy
) -> None:
    proxy.truncate(times=FOREVER, path="model.safetensors")
    with pytest.raises(LorarlError, match=f"^{FIELD}: {uri}/model.safetensors: cannot read"):
        fetch(uri, secret, QUICK)
    assert not [path for path in (cache_dir() / "models").iterdir() if path.is_dir() and path.suffix != ".partial"]
    proxy.heal()
    assert (fetch(uri, secret) / "model.safetensors").read_bytes() == b"w" * WEIGHTS_BYTES


def test_what_the_store_refuses_is_told_with_field_and_mend(uri: str, secret: dict[str, str]) -> None:
    with pytest.raises(
        LorarlError,
        match=rf"^{FIELD}: {uri}: cannot list: the store said: 403 .*refuses the keys of the Secret\. Check the",
    ):
        fetch(uri, secret | {"AWS_SECRET_ACCESS_KEY": "wrong"})
    with pytest.raises(
        LorarlError,
        match=rf"^{FIELD}: s3://nowhere/base: .*There is no bucket 'nowhere' at http.*Create it, or fix the URI",
    ):
        fetch("s3://nowhere/base", secret)
    with pytest.raises(InputError, match=rf"^{FIELD}: got {uri}/none, which contains no model"):
        fetch(f"{uri}/none", secret)
    data = partial(
        fetch_data, field="spec.data.train.uri", secret=secret, open_folder=partial(open_store, retries=STEADY)
    )
    train = uri.replace("/base", "/train.jsonl")
    assert data(train).read_text() == "{}\n"
    with pytest.raises(InputError, match=r"^spec.data.train.uri: got .*/none.jsonl, which does not exist"):
        data(train.replace("train", "none"))


def test_a_full_disk_is_reported_and_used_again_once_it_has_room(
    uri: str, secret: dict[str, str], small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says how much room is needed."""
    monkeypatch.setenv("LORARL_CACHE", str(small_disk))
    with pytest.raises(
        LorarlError,
        match=rf"^{FIELD}: no space left for {uri} in {small_disk}/models on .* "
        r"\(3,000,025 bytes are needed, .* free\)",
    ):
        fetch(uri, secret)
    subprocess.run(["mount", "-o", f"remount,size={10 * DISK_BYTES}", str(small_disk)], check=True)
    assert (fetch(uri, secret) / "model.safetensors").stat().st_size == WEIGHTS_BYTES


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(folder)], capture_output=True, text=True
    )
    if mount.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mount_secret(folder: Path, secret: dict[str, str]) -> None:
    """A Secret as the kubelet mounts it."""
    folder.mkdir(parents=True, exist_ok=True)
    for key, value in secret.items():
        (folder / key).write_text(value)


def test_no_weight_is_downloaded_if_the_gpus_are_too_small(
    uri: str, secret: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine of the workers knows its GPUs before the base model is there. It reads its own Secret each time."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho '8192, 8.9, NVIDIA GeForce RTX 4060'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent))
    mounted = tmp_path / "secrets" / "keys"
    monkeypatch.setenv("LORARL_SECRETS_DIR", str(mounted.parent))
    spec = LoRARLJobSpec.model_validate(
        {
            "model": {"uri": uri, "credentialsSecret": "keys"},
            "adapter": {"rank": 32, "targetModules": ["all-linear"]},
            "reward": {"type": "exact"},
            "data": {"train": {"uri": "file:train.jsonl"}},
            "checkpoint": {"uri": "file:checkpoints"},
            "cluster": {"gpusPerNode": 1},
        }
    )
    open_store(uri, secret, field=FIELD).put("config.json", json.dumps(SHAPES["7B"]).encode())
    mount_secret(mounted, secret | {"AWS_SECRET_ACCESS_KEY": "expired"})
    with pytest.raises(LorarlError, match=FIELD):
        fetch_fitting_model(spec)
    mount_secret(mounted, secret)  # as the kubelet does when a key is rotated
    with pytest.raises(InputError, match=r"got a job that needs [\d.]+ GB on each GPU, expected at most the 8\.6 GB"):
        fetch_fitting_model(spec)
    assert [file.name for file in cache_dir().rglob("*.*") if file.is_file()].count("config.json") == 1
    assert not list(cache_dir().rglob("*.safetensors"))
