"""vLLM's OpenAI-compatible server in its own process: its command, its start, and its end."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.launch.server_process import API_KEY, LOADS_ADAPTERS, ServerProcess, server_command
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.servers.client import VllmServer
from lorarl_trainer.servers.faults import UnreachableError
from lorarl_trainer.servers.reach import OverHttp
from lorarl_trainer.trained_adapters.serving import names

_HERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
"""How this machine reaches a server that listens everywhere."""
_ANSWER_SECONDS = 600.0
_LEAST_CACHE = 2**30
_OURS = frozenset(
    [
        *("--model", "--served-model-name", "--revision", "--host", "--port", "--middleware"),
        *("--enable-lora", "--lora-modules", "--max-lora-rank", "--max-loras", "--max-cpu-loras"),
        *("--logprobs-mode", "--api-server-count", "-asc", "--data-parallel-size", "-dp"),
    ]
)
"""Options that lorarl sets itself, or that would make several servers of which each loads adapters for itself."""
_MEMORY = frozenset(["--gpu-memory-utilization", "--kv-cache-memory-bytes"])
_OF_MEMORY = "VLLM_CPU_KVCACHE_SPACE"
"""Options of vLLM, and its variable, that say how much memory it takes on a CPU."""


def cpu_cache_bytes(weights: int, free: int, environment: Mapping[str, str] = os.environ) -> int | None:
    """Return how much memory keys and values may take on a CPU; None if the user's environment says it.

    By itself vLLM takes 92% of all memory, and ends where other programs have more than the rest. Half is left free of
    what remains with the base model here and in the server.

    Args:
        weights: bytes of the base model's files.
        free: bytes.
        environment: of the server.
    """
    return None if environment.get(_OF_MEMORY) else max(_LEAST_CACHE, (free - 2 * weights) // 2)


@dataclass(frozen=True)
class Settings:
    """How the server is started.

    Attributes:
        model: the base model's folder or name; `served` is what requests call it.
        rank: the largest of any adapter; `adapters` is how many are loaded at a time.
        on_gpu: whether a GPU computes.
        cache_bytes: of keys and values, on a CPU; None leaves it to vLLM.
        more: options for vLLM from the user.
    """

    model: str
    served: str
    revision: str | None
    dtype: str
    rank: int
    adapters: int
    host: str
    port: int
    on_gpu: bool
    cache_bytes: int | None = None
    template: Path | None = None
    template_arguments: Mapping[str, Any] | None = None
    more: Sequence[str] = ()

    def command(self) -> list[str]:
        """Return the command.

        Raises:
            InputError: the user's options contradict it.
        """
        named = {option.partition("=")[0].replace("_", "-") for option in self.more}
        for name in sorted(named & _OURS):
            hint = "Leave it out: lorarl serve has options for what may be chosen."
            raise InputError("--", f"{name}, which lorarl serve sets itself", "other options of vllm serve", hint)
        common = server_command(
            self.model, dtype=self.dtype, host=self.host, port=self.port, rank=self.rank, adapters=self.adapters
        )
        return [
            *(*common, "--served-model-name", self.served, "--middleware", names.MIDDLEWARE),
            *(("--revision", self.revision) if self.revision else ()),
            *(("--kv-cache-memory-bytes", str(self.cache_bytes)) if self.cache_bytes and not named & _MEMORY else ()),
            *(("--chat-template", str(self.template)) if self.template else ()),
            *(
                ("--default-chat-template-kwargs", json.dumps(dict(self.template_arguments)))
                if self.template_arguments
                else ()
            ),
            *self.more,
        ]


class OwnServer:
    """A server that this process started, and ends."""

    def __init__(self, settings: Settings, log: Path, names_file: Path) -> None:
        """Start nothing yet.

        Raises:
            InputError: options contradict each other.
        """
        self.url = f"http://{_HERE.get(settings.host, settings.host)}:{settings.port}"
        self._command, self._log, self._names_file = settings.command(), log, names_file
        # Where a CPU's batch has requests for the base and for adapters, vLLM gives the base the last slot's weights.
        self._withheld = {} if settings.on_gpu else {names.WITHHELD: settings.served}
        self._key = os.urandom(16).hex()
        self._process: ServerProcess | None = None

    def start(self) -> bool:
        """Start it, and return whether that was the first time.

        It ends if this process is killed, also while it starts. Ctrl-C in the terminal does not reach it by itself.
        """
        if self._process is not None:
            return False
        ours = {**LOADS_ADAPTERS, names.KEY: self._key, **self._withheld}
        ours |= {names.FILE: str(self._names_file.absolute())}
        self._process = ServerProcess(self._command, self._log, ours)
        return True

    def must_run(self) -> None:
        """Fail if it has ended, with what it said last."""
        if self._process is not None and (why := self._process.why_ended):
            raise LorarlError(f"vLLM's server {why}")

    def answers(self) -> bool:
        """Return whether it is ready. Raises LorarlError if it has ended."""
        self.must_run()
        try:
            return bool(self._ask(VllmServer.models))
        except UnreachableError:
            return False

    def load(self, name: str, folder: Path) -> None:
        """Load an adapter. Raises ServerError if the server refuses it."""
        self._ask(lambda server: server.load(name, folder.absolute()))

    def unload(self, name: str) -> None:
        """Forget an adapter. Requests that are under way keep it."""
        self._ask(lambda server: server.unload(name))

    def log_probabilities(self, model: str, texts: Sequence[Sequence[int]], last: int) -> Floats:
        """Return those of the last tokens of each text, each after those before it, [len(texts) * last].

        Each token is generated by a request that allows no other; log-probabilities are of all tokens. vLLM 0.26 has
        prompt_logprobs too, but with adapters its engine ends if others generate meanwhile.

        Raises:
            ServerError: the server does not give them.
        """

        async def asked(server: VllmServer) -> Floats:
            forced = {"max_tokens": 1, "logprobs": 0, "ignore_eos": True}
            answers = await asyncio.gather(
                *(
                    server.generate(model, ids[:at], {**forced, "allowed_token_ids": [ids[at]]})
                    for ids in texts
                    for at in range(len(ids) - last, len(ids))
                )
            )
            return np.concatenate([answer.logprobs for answer in answers])

        return self._ask(asked)

    def _ask[Answer](self, method: Callable[[VllmServer], Awaitable[Answer]]) -> Answer:
        headers = {names.HEADER: self._key}
        if key := os.environ.get(API_KEY):
            headers["Authorization"] = f"Bearer {key}"

        async def asked() -> Answer:
            async with aiohttp.ClientSession(headers=headers) as session:
                return await method(VllmServer(OverHttp(self.url, session), _ANSWER_SECONDS))

        return asyncio.run(asked())

    def end(self) -> None:
        """End it and everything that it started."""
        if self._process is not None:
            self._process.end()
