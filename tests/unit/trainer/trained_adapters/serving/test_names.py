"""Names within vLLM's server: requests get the adapter that a name means when they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from lorarl_trainer.trained_adapters.serving.names import FILE, HEADER, KEY, WITHHELD, Names, write_names

type Message = MutableMapping[str, Any]
MEANS = {"sums": "sums-step-30@aa", "sums-step-30": "sums-step-30@aa"}
CARDS = [
    {"id": "base", "parent": None},
    {"id": "sums-step-20@bb", "parent": "base", "root": "/20"},
    {"id": "sums-step-30@aa", "parent": "base", "root": "/30"},
]


@pytest.fixture
def names_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "names.json"
    write_names(file, MEANS)
    monkeypatch.setenv(FILE, str(file))
    monkeypatch.setenv(KEY, "secret")
    return file


def ask(method: str, path: str, body: bytes = b"", *, key: str = "", parts: int = 1) -> tuple[int, bytes, bytes]:
    """Ask the server through `Names`; the status, what is answered, and the body that arrived. It lists CARDS."""
    arrived: list[bytes] = []
    sent: list[Message] = []

    async def server(scope: Message, receive: Any, send: Any) -> None:
        content = b""
        while True:
            message = await receive()
            content += message["body"]
            if not message["more_body"]:
                break
        length = dict(scope["headers"]).get(b"content-length")
        assert length is None or int(length) == len(content)
        arrived.append(content)
        listed = json.dumps({"object": "list", "data": CARDS}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": listed[:9], "more_body": True})
        await send({"type": "http.response.body", "body": listed[9:]})

    size = len(body) // parts + 1
    messages = [
        {"type": "http.request", "body": body[size * part : size * (part + 1)], "more_body": part < parts - 1}
        for part in range(parts)
    ]

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"content-length", str(len(body)).encode()), (HEADER.encode(), key.encode())]
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    asyncio.run(Names(server)(scope, receive, send))
    answer = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], answer, arrived[0] if arrived else b""


@pytest.mark.parametrize("parts", [1, 3])
def test_a_request_gets_the_adapter_that_its_name_means_now(names_file: Path, parts: int) -> None:
    body = json.dumps({"model": "sums", "prompt": "é"}).encode()
    path = "/v1/completions"
    assert json.loads(ask("POST", path, body, parts=parts)[2]) == {"model": "sums-step-30@aa", "prompt": "é"}
    write_names(names_file, {"sums": "sums-step-40@cc"})
    assert json.loads(ask("POST", path, body, parts=parts)[2])["model"] == "sums-step-40@cc"


@pytest.mark.parametrize("body", [b'{"model": "base"}', b'{"model": ["sums"]}', b'["sums"]', b"\xff", b"", b'{"a": 1}'])
def test_any_other_body_arrives_as_it_was_sent(names_file: Path, body: bytes) -> None:
    assert names_file.exists() and ask("POST", "/v1/chat/completions", body)[2] == body


def test_the_list_has_served_names_alone(names_file: Path) -> None:
    status, answer, _ = ask("GET", "/v1/models")
    listed = json.loads(answer)
    assert (status, listed["object"]) == (200, "list")
    assert [card["id"] for card in listed["data"]] == ["base", "sums", "sums-step-30"], "not what is being checked"
    assert {card["root"] for card in listed["data"][1:]} == {"/30"} and names_file.exists()


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
def test_only_lorarl_loads_and_unloads(names_file: Path, path: str) -> None:
    body = b'{"lora_name": "sums"}'
    for key in ("", "guess"):
        status, answer, arrived = ask("POST", path, body, key=key)
        assert (status, arrived) == (404, b"") and b"not served here" in answer and names_file.exists()
    assert ask("POST", path, body, key="secret")[2] == body, "and the name is the one that it has"


def test_a_base_that_is_withheld_answers_the_check_alone(names_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, vLLM would answer with an adapter's weights."""
    monkeypatch.setenv(WITHHELD, "base")
    for asked in ({"model": "base"}, {"prompt": "a"}, {"model": ""}):
        body = json.dumps(asked).encode()
        status, answer, arrived = ask("POST", "/v1/completions", body)
        assert (status, arrived) == (400, b"") and b"lorarl evaluate" in answer
        assert ask("POST", "/v1/completions", body, key="secret")[::2] == (200, body)
        assert ask("POST", "/tokenize", body)[0] == 200
    assert ask("POST", "/v1/completions", b'{"model": "sums"}')[0] == 200
