"""The client of `vllm serve`: what its answers mean. They are those of vLLM 0.26, recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from lorarl_trainer.servers.client import VllmServer, answer_of, refusal
from lorarl_trainer.servers.faults import RefusedKeyError, ServerError, UnknownAdapterError, UnreachableError
from lorarl_trainer.servers.reach import OverHttp
from support.cluster.processes import free_ports
from support.serving import catch_all, serving

URL = "http://127.0.0.1:8000"
GENERATED: dict[str, Any] = {
    "request_id": "generate-tokens-916407de9290b070",
    "model": "a-7",
    "choices": [
        {
            "index": 0,
            "logprobs": {
                "content": [{"token": "token_id:112", "logprob": -4.5}, {"token": "token_id:24", "logprob": -3.75}]
            },
            "finish_reason": "length",
            "token_ids": [112, 24],
            "routed_experts": None,
        }
    ],
}


def error(message: str, kind: str, code: int) -> str:
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


def test_an_answer_has_tokens_with_their_log_probabilities() -> None:
    answer = answer_of(URL, GENERATED, with_logprobs=True)
    assert (answer.model, answer.finished) == ("a-7", False)
    assert answer.tokens.tolist() == [112, 24] and answer.tokens.dtype == np.int64
    assert answer.logprobs.tolist() == [-4.5, -3.75] and answer.logprobs.dtype == np.float32


def test_greedy_answers_have_no_log_probabilities() -> None:
    [choice] = GENERATED["choices"]
    said = {**GENERATED, "choices": [{**choice, "logprobs": None, "finish_reason": "stop"}]}
    answer = answer_of(URL, said, with_logprobs=False)
    assert answer.finished and not len(answer.logprobs)


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"finish_reason": "abort"}, UnreachableError, "gave up a request"),
        ({"finish_reason": "error"}, UnreachableError, "gave up a request"),
        ({"logprobs": None}, ServerError, "another form"),
        ({"logprobs": {"content": [{"logprob": -1.0}]}}, ServerError, "not one log-probability for each of 2 tokens"),
        ({"logprobs": {"content": [{"logprob": -1.0}, {"logprob": -9999.0}]}}, ServerError, "not one log-probability"),
        ({"token_ids": None}, ServerError, "another form"),
    ],
)
def test_an_answer_without_evidence_is_refused(changed: dict[str, Any], kind: type[ServerError], message: str) -> None:
    [choice] = GENERATED["choices"]
    with pytest.raises(kind, match=message) as refused:
        answer_of(URL, {**GENERATED, "choices": [choice | changed]}, with_logprobs=True)
    assert type(refused.value) is kind and URL in str(refused.value)


@pytest.mark.parametrize(
    ("path", "status", "text", "kind", "message"),
    [
        (
            "/inference/v1/generate",
            404,
            error("The model `a-7` does not exist.", "NotFoundError", 404),
            UnknownAdapterError,
            "The model `a-7` does not exist",
        ),
        (
            "/v1/unload_lora_adapter",
            404,
            error("The lora adapter 'a-7' cannot be found.", "NotFoundError", 404),
            UnknownAdapterError,
            "cannot be found",
        ),
        (
            "/v1/load_lora_adapter",
            404,
            error("Loading lora x failed: No adapter found for <path>", "NotFoundError", 404),
            ServerError,
            "has to see the folder under the same path",
        ),
        (
            "/v1/load_lora_adapter",
            500,
            error("LoRA rank 32 is greater than max_lora_rank 16.", "InternalServerError", 500),
            ServerError,
            "--max-lora-rank",
        ),
        ("/v1/load_lora_adapter", 404, '{"detail":"Not Found"}', ServerError, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
        ("/inference/v1/generate", 404, '{"detail":"Not Found"}', ServerError, "vLLM 0.26 or newer"),
        ("/v1/models", 401, '{"error":"Unauthorized"}', RefusedKeyError, "name the Secret in spec.rollout.credentials"),
        ("/v1/models", 403, "RBAC: access denied", RefusedKeyError, "wants a key"),
        ("/v1/models", 503, "no healthy upstream", UnreachableError, "503"),
        (
            "/inference/v1/generate",
            400,
            error("Token id 900 is out of vocabulary", "BadRequestError", 400),
            ServerError,
            "Token id 900",
        ),
    ],
)
def test_a_status_says_what_is_wrong(path: str, status: int, text: str, kind: type[ServerError], message: str) -> None:
    found = refusal(URL, path, status, text)
    assert type(found) is kind and message in str(found) and f"{URL}{path}" in str(found)


def ask[T](url: str, method: Callable[[VllmServer], Awaitable[T]], seconds: float = 10.0) -> T:
    async def asked() -> T:
        async with aiohttp.ClientSession() as session:
            return await method(VllmServer(OverHttp(url, session), seconds))

    return asyncio.run(asked())


def test_requests_are_those_of_vllm() -> None:
    seen: list[tuple[str, Any]] = []
    card = {"id": "base", "root": "/models/base", "parent": None, "max_model_len": 256}

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append((request.path, await request.json() if request.can_read_body else None))
        if request.path == "/v1/models":
            adapter = {"id": "a-7", "root": "/adapters/7", "parent": "base", "max_model_len": None}
            return web.json_response({"data": [card, adapter]})
        return web.json_response(GENERATED) if "generate" in request.path else web.Response(text="Success")

    async def all_of_them(server: VllmServer) -> list[str | None]:
        await server.load("a-7", PurePosixPath("/adapters/7"))
        await server.generate("a-7", [5, 6], {"max_tokens": 3, "logprobs": 0})
        await server.unload("a-7")
        return [model.parent for model in await server.models()]

    with serving(catch_all(answer, asyncio.Event())) as url:
        assert ask(f"{url}/v1/", all_of_them) == [None, "base"]
    assert seen == [
        ("/v1/load_lora_adapter", {"lora_name": "a-7", "lora_path": "/adapters/7"}),
        (
            "/inference/v1/generate",
            {"model": "a-7", "token_ids": [5, 6], "sampling_params": {"max_tokens": 3, "logprobs": 0}},
        ),
        ("/v1/unload_lora_adapter", {"lora_name": "a-7"}),
        ("/v1/models", None),
    ]


def test_a_server_that_is_down_or_slow_is_named() -> None:
    [port] = free_ports(1)
    with pytest.raises(UnreachableError, match=f"http://127.0.0.1:{port} cannot be reached"):
        ask(f"http://127.0.0.1:{port}", VllmServer.models)
    closing = asyncio.Event()

    async def hang(_: web.Request) -> web.StreamResponse:
        await closing.wait()
        return web.Response()

    with (
        serving(catch_all(hang, closing)) as url,
        pytest.raises(UnreachableError, match=f"{url}/v1/models took more than 0.2 s"),
    ):
        ask(url, VllmServer.models, seconds=0.2)


def test_what_is_no_vllm_is_refused() -> None:
    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    with serving(catch_all(page, asyncio.Event())) as url, pytest.raises(ServerError, match="does not answer in JSON"):
        ask(url, VllmServer.models)
