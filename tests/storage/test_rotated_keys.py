"""A Secret whose keys are replaced while a run uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from lorarl_trainer.errors import InputError, StorageError
from lorarl_trainer.storage import Store, open_store
from lorarl_trainer.storage.secrets import read_secret, rereader
from lorarl_trainer.threads import in_parallel
from support.s3_server import S3Server
from support.stores import QUICK

NAME = "s3-keys"


@pytest.fixture
def mounted(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes the files of the Secret, as the kubelet does, with keys that the store takes or refuses."""
    monkeypatch.setenv("LORARL_SECRETS_DIR", str(tmp_path))
    (tmp_path / NAME).mkdir()

    def write(**changes: str) -> None:
        for key, value in s3.secret(**changes).items():
            (tmp_path / NAME / key).write_text(value)

    return write


def opened(s3: S3Server, bucket: str) -> Store:
    """The store with the keys of now."""
    s3.make_bucket(bucket)
    return open_store(f"s3://{bucket}/folder", read_secret(NAME), retries=QUICK, reread=rereader(NAME, "field"))


def test_refused_keys_are_read_again_and_the_request_repeated(s3: S3Server, mounted: Callable[..., None]) -> None:
    mounted(AWS_SECRET_ACCESS_KEY="of yesterday")
    store = opened(s3, "rotated")
    mounted()
    in_parallel(lambda number: store.put(f"{number}", b"x"), range(8), 8)
    assert len(store.entries()) == 8


def test_keys_that_stay_refused_are_reported(s3: S3Server, mounted: Callable[..., None]) -> None:
    mounted(AWS_SECRET_ACCESS_KEY="wrong")
    store = opened(s3, "refused")
    for change in ("wrong", "also wrong"):
        mounted(AWS_SECRET_ACCESS_KEY=change)
        with pytest.raises(StorageError, match="403 SignatureDoesNotMatch"):
            store.put("a", b"x")


def test_a_secret_that_cannot_be_read_leaves_the_stores_own_words(s3: S3Server, mounted: Callable[..., None]) -> None:
    def gone() -> Mapping[str, str]:
        raise InputError("field", "nothing", "a folder", "Create it.")

    mounted(AWS_SECRET_ACCESS_KEY="wrong")
    s3.make_bucket("gone")
    store = open_store("s3://gone/folder", read_secret(NAME), retries=QUICK, reread=gone)
    with pytest.raises(StorageError, match="refuses the keys"):
        store.put("a", b"x")


def test_without_a_secret_nothing_is_read_again() -> None:
    assert rereader(None, "field") is None
