"""One `vllm serve` over HTTP: adapters that are loaded while it runs, and generation from tokens to tokens.

These are routes of vLLM 0.26. A server loads adapters if it was started with --enable-lora and with
VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from lorarl_trainer.samples.arrays import Floats, Ints
from lorarl_trainer.servers.faults import RefusedKeyError, ServerError, UnknownAdapterError, UnreachableError
from lorarl_trainer.servers.key import REFUSED, WANTED, ServerKey
from lorarl_trainer.servers.reach import Reach

START_OPTIONS = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora"
_SLOTS = re.compile(r'vllm:lora_requests_info{[^}]*max_lora="(\d+)"')
_LOAD, _UNLOAD, _GENERATE = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/inference/v1/generate"
_LEAST_LOGPROB = -9000.0
"""vLLM writes -9999 for a token that is impossible."""
_LONGEST_QUOTE = 300


@dataclass(frozen=True)
class Model:
    """A model that a server has.

    Attributes:
        name: by which requests ask for it.
        root: the folder or id that it was loaded from.
        parent: the base model's name, for an adapter; None for the base model.
        longest: tokens of a prompt and its completion; None for an adapter.
    """

    name: str
    root: str
    parent: str | None
    longest: int | None


@dataclass(frozen=True)
class Answer:
    """What a model generated.

    Attributes:
        model: by what the server says.
        tokens: with the one that ended it, [T].
        logprobs: of each, in nats, [T]; empty if none were asked for.
        finished: it ended by itself; False if it was cut off at its limit.
    """

    model: str
    tokens: Ints
    logprobs: Floats
    finished: bool


class VllmServer:
    """Asks one server. All its methods run in one event loop, and raise ServerError."""

    def __init__(self, reach: Reach, timeout_seconds: float, key: ServerKey | None = None) -> None:
        """Take the way to a server, which attaches the key."""
        self.url = reach.url
        self._reach, self._seconds, self._key = reach, timeout_seconds, key

    async def models(self) -> list[Model]:
        """Return the base model and its adapters."""
        said = _json_of(self.url, await self._ask("GET", "/v1/models"))
        try:
            return [
                Model(card["id"], card.get("root") or "", card.get("parent"), card.get("max_model_len"))
                for card in said["data"]
            ]
        except (KeyError, TypeError, AttributeError):
            raise ServerError(f"{self.url}/v1/models has no list of models: {_quoted(said)}") from None

    async def slots(self) -> int | None:
        """Return how many adapters it generates with at a time; None before its first step, or without metrics."""
        try:
            found = _SLOTS.search(await self._ask("GET", "/metrics"))
        except UnreachableError:
            raise
        except ServerError:  # started with --disable-log-stats, for example
            return None
        return int(found[1]) if found else None

    async def deliver(self, folder: Path, files: Any, kept: Collection[str]) -> PurePath:
        """Bring an adapter's files to where the server reads them: see `Reach`."""
        return await self._reach.deliver(folder, files, kept)

    async def load(self, name: str, folder: PurePath) -> None:
        """Load an adapter in PEFT's format from a folder of the server's, under a name that it does not have."""
        await self._ask("POST", _LOAD, {"lora_name": name, "lora_path": str(folder)})

    async def unload(self, name: str) -> None:
        """Forget an adapter. Raises UnknownAdapterError if the server has none of this name."""
        await self._ask("POST", _UNLOAD, {"lora_name": name})

    async def generate(self, model: str, tokens: Sequence[int], sampling: Mapping[str, Any]) -> Answer:
        """Continue tokens.

        `sampling`: vLLM's SamplingParams by name, for one completion. With logprobs 0, those of its tokens come too.

        Raises:
            UnknownAdapterError: the server has no model of this name.
        """
        body = {"model": model, "token_ids": list(map(int, tokens)), "sampling_params": dict(sampling)}
        said = _json_of(self.url, await self._ask("POST", _GENERATE, body))
        return answer_of(self.url, said, with_logprobs=sampling.get("logprobs") is not None)

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        sent = self._key.value if self._key else ""
        status, text = await self._reach.ask(method, path, body, self._seconds)
        if status == HTTPStatus.UNAUTHORIZED and self._key and self._key.renew(sent):
            status, text = await self._reach.ask(method, path, body, self._seconds)
        if status != HTTPStatus.OK:
            raise refusal(self.url, path, status, text, with_key=self._key is not None)
        return text


def refusal(url: str, path: str, status: int, text: str, *, with_key: bool = False) -> ServerError:
    """Return what a status other than 200 means, with a fix where one is known. `with_key`: the request had one."""
    said = f"{url}{path} answers with status {status}: {_quoted(_message(text))}"
    if path != _LOAD and ("does not exist" in text or "cannot be found" in text):
        return UnknownAdapterError(said)
    if status in (502, 503, 504):
        return UnreachableError(said)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return RefusedKeyError(f"{said}. {REFUSED if with_key else WANTED}")
    if hint := _hint(path, status, text):
        return ServerError(f"{said}. {hint}")
    return ServerError(said)


def answer_of(url: str, said: Any, *, with_logprobs: bool) -> Answer:
    """Return what an answer of /inference/v1/generate has.

    Raises:
        ServerError: it is not of that form, lacks a log-probability, or was not generated to its end.
    """
    try:
        choice = said["choices"][0]
        tokens = np.asarray(choice["token_ids"], dtype=np.int64)
        entries = choice["logprobs"]["content"] if with_logprobs else []
        logprobs = np.asarray([entry["logprob"] for entry in entries], dtype=np.float32)
        model, end = str(said["model"]), choice["finish_reason"]
    except (KeyError, IndexError, TypeError, ValueError):
        raise ServerError(f"{url} answers in another form than vLLM 0.26: {_quoted(said)}") from None
    if end not in ("stop", "length") or not len(tokens):
        raise UnreachableError(f"{url} gave up a request ({end}), as when it is shut down")
    if with_logprobs and (len(logprobs) != len(tokens) or not (logprobs > _LEAST_LOGPROB).all()):
        raise ServerError(f"{url} has not one log-probability for each of {len(tokens)} tokens")
    return Answer(model, tokens, logprobs, finished=end == "stop")


def _hint(path: str, status: int, text: str) -> str:
    if path == _LOAD:
        if "No adapter found" in text:
            return "The server has to see the folder under the same path."
        if "max_lora_rank" in text:
            return "Start the server with a --max-lora-rank of at least the adapter's rank."
        if status in (404, 405):
            return f"Start the server with {START_OPTIONS}."
    if path == _GENERATE and status in (404, 405):
        return "It needs vLLM 0.26 or newer."
    return ""


def _json_of(url: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ServerError(f"{url} does not answer in JSON: {_quoted(text)}") from None


def _message(text: str) -> str:
    """Return the message of an error in OpenAI's form, or the whole text."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text


def _quoted(said: Any) -> str:
    text = " ".join(str(said).split())
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."
