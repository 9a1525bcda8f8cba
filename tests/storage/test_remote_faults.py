"""A real S3 server whose network misbehaves."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError
from obstore.store import S3Store

from lorarl_trainer.errors import StorageError
from lorarl_trainer.storage import UPLOADS, RetryPolicy, Store, open_store
from lorarl_trainer.storage import remote as remote_module
from lorarl_trainer.threads import in_parallel
from support.fault_proxy import FOREVER, FaultProxy
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from support.stores import QUICK, STEADY


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408])
def test_an_answer_that_may_pass_is_asked_for_again(s3_store: Store, proxy: FaultProxy, status: int) -> None:
    fault = proxy.answer(status, times=4)
    assert s3_store.put_if_absent("a", b"x")
    assert fault.struck == 4


def test_reading_listing_and_deleting_are_tried_again_too(s3_store: Store, proxy: FaultProxy) -> None:
    s3_store.put("a", b"x")
    proxy.answer(503, times=4)
    assert s3_store.get("a") == b"x"
    proxy.answer(503, times=4)
    assert [entry.path for entry in s3_store.entries()] == ["a"]
    proxy.answer(503, times=4)
    s3_store.delete(["a"])
    assert s3_store.get("a") is None


def test_hanging_and_broken_connections_are_tried_again(quick_store: Store, proxy: FaultProxy) -> None:
    for misbehave in (proxy.hang, proxy.drop):
        misbehave(times=1)
        quick_store.put("a", b"x")
        misbehave(times=1)
        assert quick_store.get("a") == b"x"


def test_a_download_that_breaks_off_is_tried_again(
    s3_store: Store, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "CHUNK_BYTES", 50_000)
    data = bytes(range(256)) * 800
    s3_store.put("model/a", data)
    proxy.truncate(times=4, method="GET", path="/model/a")
    assert s3_store.get("model/a") == data
    proxy.truncate(times=3, method="GET", path="/model/a")
    assert [copy.read_bytes() for copy in s3_store.download("model", tmp_path)] == [data]


def test_an_upload_that_breaks_off_is_tried_again(
    s3_store: Store, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "CHUNK_BYTES", 5 * 2**20)
    source = tmp_path / "weights"
    source.write_bytes(bytes(range(256)) * 50_000)
    proxy.drop(times=2, method="PUT", path="/model/weights")
    fault = proxy.answer(503, times=4)  # the client's own retries do not reach so far
    s3_store.upload_file(source, "model/weights")
    assert fault.struck == 4
    assert s3_store.get("model/weights") == source.read_bytes()
    assert [entry.path for entry in s3_store.entries()] == ["model/weights"]


def test_a_creation_whose_answer_was_lost_has_succeeded(s3_store: Store, proxy: FaultProxy) -> None:
    proxy.drop(times=1, method="PUT", after_forwarding=True)
    assert s3_store.put_if_absent("a", b"x")
    assert s3_store.get("a") == b"x"


def test_a_store_that_hangs_up_on_a_large_file_that_is_there_is_understood(s3: S3Server, bucket: str) -> None:
    # It refuses the file before it has read it, so the client often sees a broken connection in place of the answer.
    store = open_store(f"s3://{bucket}", s3.secret(), retries=replace(STEADY, deadline_seconds=0))
    store.put("a", there := b"1" * (8 << 20))
    assert [store.put_if_absent("a", b"2" * len(there)) for _ in range(20)] == [False] * 20
    assert store.put_if_absent("a", there)


@pytest.mark.parametrize("size", [3, 40 << 20])
def test_a_creation_says_whether_what_is_there_is_the_same(s3_store: Store, size: int) -> None:
    there = memoryview(os.urandom(size))
    s3_store.put("a", there)
    assert s3_store.put_if_absent("a", there)
    assert not s3_store.put_if_absent("a", there[:-1])
    assert not s3_store.put_if_absent("a", bytes(there[:-1]) + bytes([there[-1] ^ 1]))
    assert s3_store.get("a") == s3_store.get_large("a") == there
    assert s3_store.get_large("b") is None


def test_a_swap_whose_answer_was_lost_has_succeeded(s3_store: Store, proxy: FaultProxy) -> None:
    first = s3_store.replace_if("latest", b"1", None)
    proxy.drop(times=1, method="PUT", after_forwarding=True)
    second = s3_store.replace_if("latest", b"2", first)
    assert second is not None
    assert s3_store.replace_if("latest", b"3", second) is not None


def test_a_swap_that_is_held_up_loses_to_one_that_was_faster(s3: S3Server, proxy: FaultProxy, bucket: str) -> None:
    patient = open_store(f"s3://{bucket}", s3.secret(proxy.url), retries=RetryPolicy(request_seconds=10))
    direct = open_store(f"s3://{bucket}", s3.secret())
    tag = direct.replace_if("latest", b"1", None)
    hold = proxy.hold(method="PUT", path="latest")
    outcome: list[object] = []
    slow = threading.Thread(target=lambda: outcome.append(patient.replace_if("latest", b"slow", tag)))
    slow.start()
    assert hold.arrived.wait(30)
    assert direct.replace_if("latest", b"fast", tag) is not None
    hold.release()
    slow.join(10)
    assert outcome == [None]
    assert direct.get("latest") == b"fast"


def test_an_outage_shorter_than_the_deadline_is_sat_out(s3_store: Store, proxy: FaultProxy) -> None:
    outage = proxy.answer(503, times=6)
    assert s3_store.put_if_absent("a", b"x")
    assert outage.struck == 6


def test_an_outage_longer_than_the_deadline_is_an_error_that_says_so(
    quick_store: Store, proxy: FaultProxy, bucket: str
) -> None:
    proxy.answer(503, times=FOREVER)
    begin = time.monotonic()
    with pytest.raises(StorageError) as failed:
        quick_store.put("a", b"x")
    assert QUICK.deadline_seconds * 0.8 < time.monotonic() - begin < QUICK.deadline_seconds + 30
    message = str(failed.value)
    assert f"s3://{bucket}/team/adapters/a: cannot write" in message
    assert "503 Injected (injected by the proxy)" in message
    assert "did not recover in time" in message


def test_wrong_keys_are_not_tried_again(s3: S3Server, proxy: FaultProxy, bucket: str) -> None:
    store = open_store(f"s3://{bucket}", s3.secret(proxy.url, AWS_SECRET_ACCESS_KEY="wrong-and-secret"), retries=STEADY)
    for operation in (lambda: store.put("a", b"x"), lambda: store.get("a"), lambda: store.entries()):
        proxy.requests.clear()
        with pytest.raises(StorageError, match=r"403 SignatureDoesNotMatch.*refuses the keys") as failed:
            operation()
        assert len(proxy.requests) == 1
        assert "wrong-and-secret" not in str(failed.value)


def test_an_unknown_user_is_not_mistaken_for_an_absent_object(s3: S3Server, bucket: str) -> None:
    # This server answers 404 to a key that it does not know.
    store = open_store(f"s3://{bucket}", s3.secret(AWS_ACCESS_KEY_ID="nobody"), retries=STEADY)
    with pytest.raises(StorageError, match="refuses the keys"):
        store.get("a")


def test_a_missing_bucket_is_named_at_once(s3: S3Server, proxy: FaultProxy) -> None:
    store = open_store("s3://no-such-bucket/folder", s3.secret(proxy.url), retries=STEADY)
    for operation in (
        lambda: store.put_if_absent("a", b"x"),
        lambda: store.get("a"),
        lambda: store.entries(),
        lambda: store.folders(),
    ):
        proxy.requests.clear()
        with pytest.raises(
            StorageError,
            match=r"NoSuchBucket.*There is no bucket 'no-such-bucket' at http://.*Create it, or fix the URI",
        ):
            operation()
        assert len(proxy.requests) == 1


def test_no_credentials_at_all_is_said_so(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match=r"No credentials were given\. Name a Secret in credentialsSecret"):
        open_store("s3://bucket", {"AWS_ENDPOINT_URL": proxy.url}, retries=QUICK).get("a")


def test_a_server_that_is_not_there_is_named(bucket: str, s3: S3Server) -> None:
    store = open_store(
        f"s3://{bucket}",
        s3.secret("http://127.0.0.1:9"),
        retries=RetryPolicy(deadline_seconds=0.2, request_seconds=0.2),
    )
    with pytest.raises(StorageError, match=r"http://127\.0\.0\.1:9 did not recover in time"):
        store.put("a", b"x")


def test_a_store_without_conditional_writes_is_refused_at_once(s3_store: Store, proxy: FaultProxy) -> None:
    fault = proxy.answer(501, times=FOREVER, method="PUT")
    with pytest.raises(StorageError, match="no conditional writes"):
        s3_store.put_if_absent("a", b"x")
    assert fault.struck <= 3


def test_obstores_own_retries_would_not_do(s3: S3Server, proxy: FaultProxy, bucket: str) -> None:
    """Why the retries are ours: the day this fails, they may go."""
    config = {
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET_KEY,
        "endpoint": proxy.url,
        "region": "us-east-1",
    }

    def client(seconds: float) -> S3Store:
        return S3Store(
            bucket, config=config, client_options={"allow_http": True, "timeout": timedelta(seconds=seconds)}
        )

    proxy.hang(times=1, method="PUT")
    with pytest.raises(GenericError):
        obstore.put(client(0.25), "hung", b"x", mode="create")
    proxy.drop(times=1, method="PUT", after_forwarding=True)
    with pytest.raises(AlreadyExistsError):
        obstore.put(client(10), "answer-lost", b"x", mode="create")


def test_parallel_uploads_get_the_time_they_take_from_each_other(quick_store: Store, proxy: FaultProxy) -> None:
    megabyte = bytes(1_000_000)  # a second at the slowest rate that is waited for, alone
    proxy.delay(2.5, times=UPLOADS)
    paths = [f"part-{number}" for number in range(UPLOADS)]
    assert all(in_parallel(lambda path: quick_store.put_if_absent(path, megabyte), paths, UPLOADS))
    assert [method for method, _ in proxy.requests] == ["PUT"] * UPLOADS, "none was given up and sent again"
