"""The client against a loopback server that answers like an API server under load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from lorarl_operator.kube import client as client_module
from lorarl_operator.kube.client import Client, unfenced
from lorarl_operator.kube.errors import ApiError, NotLeaderError
from lorarl_operator.kube.resources import RAYJOBS

MANIFEST = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"namespace": "ns", "name": "a"}}
type Answer = tuple[int, dict[str, Any], dict[str, str]]


def failure(status: int, reason: str = "", **headers: str) -> Answer:
    return (
        status,
        {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": "no reason"},
        headers,
    )


def against(
    answers: list[Answer], use: Callable[[Client], Awaitable[Any]], fence: Callable[[], float] = unfenced
) -> tuple[Any, list[str]]:
    """The result of `use` with these answers, one per request (the last one repeats), and the requests."""
    requests: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        requests.append(f"{request.method} {request.path_qs}")
        status, body, headers = answers[min(len(requests), len(answers)) - 1]
        return web.json_response(body, status=status, headers=headers)

    async def story() -> Any:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        client = Client(Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}"), fence)
        try:
            return await use(client)
        except (ApiError, NotLeaderError) as error:
            return error
        finally:
            await client.close()
            await runner.cleanup()

    return asyncio.run(story()), requests


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_BACKOFF_SECONDS", 0.01)


@pytest.mark.parametrize("status", [429, 500, 503, 504])
def test_a_server_error_is_tried_again(status: int) -> None:
    answer, requests = against(
        [failure(status), failure(status), (201, MANIFEST, {})], lambda client: client.create(MANIFEST)
    )
    assert answer == MANIFEST
    assert len(requests) == 3


def test_the_servers_retry_after_is_honoured() -> None:
    started = time.monotonic()
    answer, requests = against(
        [failure(429, **{"Retry-After": "1"}), (201, MANIFEST, {})], lambda client: client.create(MANIFEST)
    )
    assert answer == MANIFEST and len(requests) == 2
    assert time.monotonic() - started >= 1


def test_a_long_wait_is_left_to_the_queue() -> None:
    error, requests = against([failure(429, **{"Retry-After": "30"})], lambda client: client.create(MANIFEST))
    assert isinstance(error, ApiError) and error.retry_after == 30 and error.transient
    assert len(requests) == 1


@pytest.mark.parametrize("status", [401, 500])
def test_it_gives_up_after_four_attempts(status: int) -> None:
    """A token that was just replaced, or an API server without its etcd, is no answer about the object."""
    error, requests = against([failure(status)], lambda client: client.create(MANIFEST))
    assert isinstance(error, ApiError) and error.status == status and error.transient
    assert len(requests) == 4


@pytest.mark.parametrize("status", [400, 403, 422])
def test_a_refusal_is_not_tried_again(status: int) -> None:
    error, requests = against([failure(status, "Invalid")], lambda client: client.create(MANIFEST))
    assert isinstance(error, ApiError) and error.refused and not error.transient
    assert str(error) == f"POST /apis/ray.io/v1/namespaces/ns/rayjobs: {status} Invalid: no reason"
    assert len(requests) == 1


def test_two_kinds_of_conflict_are_distinguished() -> None:
    moved, _ = against([failure(409, "Conflict")], lambda client: client.apply(MANIFEST))
    there, _ = against([failure(409, "AlreadyExists")], lambda client: client.create(MANIFEST))
    assert (moved.conflict, moved.already_exists) == (True, False)
    assert (there.conflict, there.already_exists) == (False, True)


def test_a_missing_object_is_deleted_and_one_with_a_conflict_may_exist() -> None:
    for answer in (failure(404, "NotFound"), (200, {"kind": "Status", "status": "Success"}, {})):
        left, _ = against([answer], lambda client: client.delete(RAYJOBS, "ns", "a", "uid"))
        assert left is None
    left, _ = against([(200, MANIFEST, {})], lambda client: client.delete(RAYJOBS, "ns", "a", "uid"))
    assert left == MANIFEST
    error, requests = against([failure(409, "Conflict")], lambda client: client.delete(RAYJOBS, "ns", "a", "uid"))
    assert error.conflict and len(requests) == 1


def test_a_conflict_without_a_precondition_is_tried_again() -> None:
    answers = [failure(409, "Conflict"), (200, MANIFEST, {})]
    assert against(answers, lambda client: client.apply(MANIFEST))[0] == MANIFEST
    assert against(answers, lambda client: client.create(MANIFEST))[0] == MANIFEST
    conditional = {**MANIFEST, "metadata": {**MANIFEST["metadata"], "resourceVersion": "7"}}
    for use in (
        lambda client: client.apply(conditional, subresource="status"),
        lambda client: client.replace(conditional),
    ):
        error, requests = against(answers, use)
        assert error.conflict and len(requests) == 1


def test_a_failed_connection_has_its_own_reason() -> None:
    async def refused() -> ApiError:
        client = Client(Configuration(host="http://127.0.0.1:1"))
        try:
            await client.get(RAYJOBS, "ns", "a")
        except ApiError as error:
            return error
        finally:
            await client.close()
        raise AssertionError("no server listens there")

    error = asyncio.run(refused())
    assert error.status == 0 and error.transient and error.reason == "ConnectionFailed"


def test_pages_are_followed_to_the_end() -> None:
    first = {"metadata": {"resourceVersion": "7", "continue": "next"}, "items": [{"n": 1}]}
    last = {"metadata": {"resourceVersion": "7"}, "items": [{"n": 2}]}

    async def all_of_it(client: Client) -> list[Any]:
        return [page async for page in client.pages(RAYJOBS, None, labels="a=b", limit=1)]

    pages, requests = against([(200, first, {}), (200, last, {})], all_of_it)
    assert pages == [([{"n": 1}], "7"), ([{"n": 2}], "7")]
    assert requests == [
        "GET /apis/ray.io/v1/rayjobs?limit=1&labelSelector=a%3Db",
        f"{'GET /apis/ray.io/v1/rayjobs'}?limit=1&labelSelector=a%3Db&continue=next",
    ]


def test_without_the_lease_reads_are_sent_and_writes_are_not() -> None:
    error, requests = against([(201, MANIFEST, {})], lambda client: client.create(MANIFEST), fence=lambda: 0.0)
    assert isinstance(error, NotLeaderError)
    assert requests == []
    found, requests = against([(200, MANIFEST, {})], lambda client: client.get(RAYJOBS, "ns", "a"), fence=lambda: 0.0)
    assert found == MANIFEST and len(requests) == 1


def test_a_repeated_write_is_not_sent_when_the_lease_ends_meanwhile() -> None:
    left = iter([10.0, 0.0])
    error, requests = against([failure(500)], lambda client: client.create(MANIFEST), fence=lambda: next(left))
    assert isinstance(error, NotLeaderError)
    assert len(requests) == 1
