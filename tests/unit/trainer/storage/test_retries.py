from __future__ import annotations

import time

import pytest

from lorarl_trainer.errors import StorageError
from lorarl_trainer.storage import open_store
from lorarl_trainer.storage.keys_origin import origin_of_keys
from lorarl_trainer.storage.retries import (
    HASTY,
    WITHOUT_CREDENTIALS,
    RetryPolicy,
    hasty_stores,
    read_answer,
    usual_policy,
)

OF_SECRET = origin_of_keys("s3", {"AWS_ACCESS_KEY_ID": "a"}, {})


def answer_to(text: str) -> Exception:
    return RuntimeError(f"{text}\n\nDebug source:\nGeneric {{ }}")


def xml(status: str, code: str) -> Exception:
    body = f"<Error><Code>{code}</Code><Message>So it is.</Message><StringToSign>hush</StringToSign></Error>"
    return answer_to(f"Error performing PUT http://s3/x in 1ms - Server returned non-2xx status code: {status}: {body}")


@pytest.mark.parametrize(
    "status", ["500 Internal Server Error", "503 Service Unavailable", "429 Too Many Requests", "408 Request Timeout"]
)
def test_trouble_of_the_server_may_pass(status: str) -> None:
    assert read_answer(xml(status, "Trouble")).transient


@pytest.mark.parametrize(
    "status",
    [
        "400 Bad Request",
        "403 Forbidden",
        "404 Not Found",
        "412 Precondition Failed",
        "501 Not Implemented",
        "507 Insufficient Storage",
    ],
)
def test_a_refusal_will_not_pass(status: str) -> None:
    assert not read_answer(xml(status, "Refused")).transient


def test_a_broken_connection_may_pass_and_a_wrong_configuration_will_not() -> None:
    assert read_answer(
        answer_to("Error performing GET http://s3/x in 2s - HTTP error: error sending request")
    ).transient
    assert not read_answer(
        answer_to("Received redirect without LOCATION, this normally indicates an incorrectly configured region")
    ).transient


@pytest.mark.parametrize("asked", WITHOUT_CREDENTIALS)
def test_a_machine_without_an_identity_of_its_own_stays_so(asked: str) -> None:
    """The address is not there, so this is a connection that fails too. It is found at once and not after minutes."""
    text = f"Error performing GET http://169.254.169.254{asked} in 1s - HTTP error: error sending request"
    answer = read_answer(answer_to(text))
    assert answer.without_credentials and not answer.transient
    assert answer.hint("team", None, OF_SECRET).startswith("No credentials were given.")


def test_only_an_answer_about_the_object_means_that_it_is_absent() -> None:
    assert read_answer(xml("404 Not Found", "NoSuchKey")).absent
    assert read_answer(xml("404 Not Found", "BlobNotFound")).absent
    assert not read_answer(xml("404 Not Found", "NoSuchBucket")).absent
    assert not read_answer(xml("403 Forbidden", "NoSuchKey")).absent


def test_an_answer_is_shown_without_what_was_signed() -> None:
    assert str(read_answer(xml("403 Forbidden", "SignatureDoesNotMatch"))) == "403 SignatureDoesNotMatch (So it is.)"


@pytest.mark.parametrize(
    ("status", "code", "hint"),
    [
        ("403 Forbidden", "AccessDenied", "Check the Secret's keys"),
        ("403 Forbidden", "RequestTimeTooSkewed", "clock"),
        ("404 Not Found", "NoSuchBucket", "There is no bucket 'team' at http://s3"),
        ("501 Not Implemented", "NotImplemented", "conditional writes"),
        ("507 Insufficient Storage", "Full", "disk is full"),
        ("503 Service Unavailable", "SlowDown", "did not recover in time"),
    ],
)
def test_each_answer_has_its_mend(status: str, code: str, hint: str) -> None:
    assert hint in read_answer(xml(status, code)).hint("team", "http://s3", OF_SECRET)


def failing(attempts: list[float]) -> None:
    attempts.append(time.monotonic())
    raise TimeoutError


def test_no_attempt_starts_after_the_deadline() -> None:
    attempts: list[float] = []
    with pytest.raises(TimeoutError):
        RetryPolicy(deadline_seconds=1, first_wait_seconds=0.01, longest_wait_seconds=0.02).call(
            lambda: failing(attempts), lambda _: True
        )
    assert len(attempts) > 5
    assert attempts[-1] - attempts[0] < 10


def test_reading_has_a_deadline_of_its_own() -> None:
    attempts: list[float] = []
    policy = RetryPolicy(
        deadline_seconds=60, read_deadline_seconds=0.1, first_wait_seconds=0.01, longest_wait_seconds=0.02
    )
    with pytest.raises(TimeoutError):
        policy.call(lambda: failing(attempts), lambda _: True, reading=True)
    assert attempts[-1] - attempts[0] < 30


def test_waits_grow() -> None:
    attempts: list[float] = []
    with pytest.raises(TimeoutError):
        RetryPolicy(deadline_seconds=0.4, first_wait_seconds=0.005, longest_wait_seconds=60).call(
            lambda: failing(attempts), lambda _: True
        )
    assert len(attempts) < 30, "waits of 0 to 0.005 s that do not grow would be about 160 attempts"


def test_a_failure_for_good_is_raised_at_once() -> None:
    attempts: list[float] = []
    with pytest.raises(TimeoutError):
        RetryPolicy().call(lambda: failing(attempts), lambda _: False)
    assert len(attempts) == 1


def test_a_hasty_look_gives_up_soon_and_others_do_not() -> None:
    keys = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    began = time.monotonic()
    with hasty_stores():
        store = open_store("s3://bucket/folder", keys | {"AWS_REGION": "us-east-1"})
        assert usual_policy() is HASTY
    assert usual_policy() == RetryPolicy(), "a run that follows is patient again"
    with pytest.raises(StorageError, match=r"at http://127\.0\.0\.1:9 did not recover in time"):
        store.get("a")
    assert time.monotonic() - began < 60
