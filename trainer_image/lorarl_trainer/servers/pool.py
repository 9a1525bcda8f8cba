"""The servers of a job: which request goes to which, and what becomes of it if a server fails.

A request goes only to a server that has proven the newest version since it loaded it. If that server fails, its
requests go to others, from their beginning. A server that did not answer, or has lost its adapter, is asked again:
once it has loaded and proven the version, it gets requests again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
import numpy as np

from lorarl_api.v1alpha1 import LoRARLJob, LoRARLJobSpec
from lorarl_trainer.errors import RolloutServerError, StaleAdapterError
from lorarl_trainer.protocols.workers import Generated, TakeCompletions
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.servers.client import ServerError, VllmServer
from lorarl_trainer.servers.proof import Proof
from lorarl_trainer.servers.requests import sampling_params, server_for
from lorarl_trainer.servers.server import Server, Version

AT_ONCE = 256
"""Requests that a server gets at a time: as many as vLLM runs by default. The others wait for whichever has room."""
SERVED = "served"
"""The folder of adapter versions in a run's."""
PAUSE_SECONDS = 2.0
"""Between two attempts to reach a server."""

type Score = Callable[[Sequence[Sample], float], Awaitable[list[Floats]]]
"""Returns the trainer's log-probabilities of samples' responses, at a temperature."""


@dataclass(eq=False)
class _Asked:
    """A request that has not ended.

    Attributes:
        place: its index among those submitted with it.
        take: who gets its completion.
    """

    request: GenerationRequest
    place: int
    take: TakeCompletions


class Servers:
    """All servers, addressed together, in the place of the workers' engines."""

    def __init__(
        self, spec: LoRARLJobSpec, folder: Path, warn: Callable[[str], None], *, pause_seconds: float = PAUSE_SECONDS
    ) -> None:
        """Ask nothing yet.

        Args:
            spec: the job.
            folder: where its adapter versions go.
            warn: takes what the user should know about a server.
            pause_seconds: see `PAUSE_SECONDS`.
        """
        self._rollout, self._folder, self._warn, self._pause = spec.rollout, folder, warn, pause_seconds
        self._patience = spec.rollout.effective_server_timeout
        self.urls = tuple(url.rstrip("/").removesuffix("/v1") for url in spec.servers)
        self._start_of_names = f"lorarl-{secrets.token_hex(4)}"
        self._servers: list[Server] = []
        self._session: aiohttp.ClientSession | None = None
        self._version: Version | None = None
        self._proof: Proof | None = None
        self._waiting: deque[_Asked] = deque()
        self._running: dict[asyncio.Task[None], tuple[Server, _Asked]] = {}
        self._returning: dict[Server, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._seconds = 0.0

    @property
    def serving(self) -> tuple[str, ...]:
        """The addresses of those that serve the newest version."""
        return tuple(server.url for server in self._servers if server.serves)

    def begin(self, stop_token_ids: tuple[int, ...], score: Score) -> None:
        """Take what new workers bring: what ends a completion, and the trainer's log-probabilities.

        Before the next version that counts, the start is checked again.
        """
        self._stop_token_ids, self._score, self._proof = stop_token_ids, score, None

    def version_of(self, number: int) -> Version:
        """Return where a version is written to."""
        name = f"{self._start_of_names}-{number}"
        return Version(number, name, self._folder / name)

    def hold_to(self, proof: Proof) -> None:
        """Let each version be proven so from here on. Before, the start's check is made instead."""
        self._proof = proof

    async def take(self, version: Version) -> None:
        """Let the servers serve a version, whose files are there. Those that cannot are left out, with a warning.

        Raises:
            RolloutServerError: none of them serves it; or at the start, one refuses it.
        """
        await self._stop_returning()
        self._version, self._failure = version, None
        for server in self._opened():
            server.serves = False
        await asyncio.gather(*(self._bring(server) for server in self._servers))
        refused = [server for server in self._servers if server.why_not and not server.may_return]
        if refused and self._proof is None:
            raise RolloutServerError(_none_left(refused))
        try:
            await self._until_one_serves()
        finally:
            await self._stop_returning()

    def submit(self, requests: Sequence[GenerationRequest], take: TakeCompletions) -> list[Any]:
        """Queue requests. It makes no calls that somebody would have to wait for.

        Raises:
            StaleAdapterError: one asks for another adapter version than the servers have.
        """
        assert self._version is not None, "a version is taken first"
        for place, request in enumerate(requests):
            if request.adapter not in (None, self._version.number):
                raise StaleAdapterError(
                    f"{request.asked_by}: adapter version {self._version.number} would generate, "
                    f"expected {request.adapter}"
                )
            self._waiting.append(_Asked(request, place, take))
        self._changed.set()
        return []

    def start(self) -> None:
        """Let the servers generate what is queued, unless they do."""
        if self._waiting and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run())

    @property
    def running(self) -> list[asyncio.Task[None]]:
        """What runs; a failure is among it until `stop`."""
        task = self._task
        return [task] if task and (not task.done() or task.cancelled() or task.exception()) else []

    def made(self) -> Generated:
        """Return how the servers generated since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return Generated({"generate": seconds})

    async def stop(self) -> None:
        """End what runs."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self._waiting.clear()

    async def close(self) -> None:
        """Let the servers forget the adapter, and remove its files."""
        await self.stop()
        if self._version:
            for server in self._servers:
                if server.serves:
                    with contextlib.suppress(ServerError):
                        await server.client.unload(self._version.name)
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._session:
            await self._session.close()

    def _opened(self) -> list[Server]:
        if self._session is None:
            # A server runs its requests side by side, so nothing limits the connections here. Each request has its own:
            # vLLM ends those that were idle for 5 s, and a request that is sent on one just then gets no answer.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=True)
            longest = self._rollout.max_prompt_tokens + self._rollout.max_response_tokens
            self._servers = [Server(VllmServer(url, self._session, self._patience), longest) for url in self.urls]
        return self._servers

    async def _run(self) -> None:
        """Generate until nothing is queued, and nothing runs."""
        began = time.perf_counter()
        for server in self._servers:
            if server.may_return:
                self._let_return(server)
        try:
            while self._require_sound() and (self._waiting or self._running):
                await self._until_one_serves()
                self._give()
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._failure = None
            await _ended([*self._running, *self._returning.values()])
            self._running.clear()
            self._returning.clear()
            self._seconds += time.perf_counter() - began

    def _give(self) -> None:
        """Give the queued requests to servers, as far as they have room."""
        counts = {server.url: 0 for server in self._servers if server.serves}
        for server, _ in self._running.values():
            counts[server.url] += 1
        by_url = {server.url: server for server in self._servers}
        while self._waiting:
            wanted = self._waiting[0].request.server
            url = wanted or server_for(counts, len(self._waiting), AT_ONCE)
            if url is None:
                return
            if url not in counts:
                raise RolloutServerError(_none_left([by_url[url]]))
            asked = self._waiting.popleft()
            counts[url] += 1
            task = asyncio.create_task(self._generate(by_url[url], asked))
            self._running[task] = by_url[url], asked
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception():
            self._failure = task.exception()
        self._changed.set()

    def _require_sound(self) -> bool:
        """Raise what a task has raised, of those who take completions or compute log-probabilities."""
        if self._failure:
            raise self._failure
        return True

    async def _generate(self, server: Server, asked: _Asked) -> None:
        assert self._version is not None, "a version is taken first"
        try:
            made = await server.generate(
                self._version, list(asked.request.tokens), self._sampling_params(asked.request)
            )
        except ServerError as error:
            self._leave_out(server, error)
            return
        # Before anything else can look: a request that has ended is not given to another server.
        del self._running[cast("asyncio.Task[None]", asyncio.current_task())]
        asked.take([asked.place], [made])

    def _sampling_params(self, request: GenerationRequest) -> dict[str, Any]:
        rollout = self._rollout
        return sampling_params(
            request,
            sampling=Sampling.of(rollout),
            most=rollout.max_response_tokens,
            stop_token_ids=self._stop_token_ids,
            stop=tuple(rollout.stop),
        )

    def _leave_out(self, server: Server, error: ServerError) -> None:
        """Take a server's requests back, and let it return if it may."""
        if not server.serves:
            return  # another of its requests has said so
        self._says_no(server, error)
        given = [(task, asked) for task, (by, asked) in self._running.items() if by is server]
        self._waiting.extendleft(asked for _, asked in reversed(given))
        for task, _ in given:
            del self._running[task]
            if task is not asyncio.current_task():
                task.cancel()
        if server.may_return:
            self._let_return(server)
        self._changed.set()

    def _let_return(self, server: Server) -> None:
        if server not in self._returning:
            task = self._returning[server] = asyncio.create_task(self._return(server))
            task.add_done_callback(self._over)

    async def _return(self, server: Server) -> None:
        """Ask a server until it serves the version, or refuses it."""
        while True:
            await self._bring(server)
            if not server.may_return:
                break
            await asyncio.sleep(self._pause)
        del self._returning[server]

    async def _bring(self, server: Server) -> None:
        """Let a server serve the version, or know why it does not."""
        assert self._version is not None, "it is being taken"
        try:
            await server.bring(self._version, self._prove)
        except ServerError as error:
            self._says_no(server, error)
            return
        if server.why_not is not None:
            self._warn(f"{server.url} serves again, with adapter version {self._version.number}, which it has proven")
        server.serves, server.why_not = True, None

    async def _prove(self, server: Server) -> None:
        if (proof := self._proof) is None:
            return
        version = self._version
        assert version is not None, "it is being taken"
        requests = proof.requests()
        made = await asyncio.gather(
            *(server.generate(version, list(one.tokens), self._sampling_params(one)) for one in requests)
        )
        samples = [Sample.of(one.tokens, completion) for one, completion in zip(requests, made, strict=True)]
        scores = np.concatenate(await self._score(samples, proof.sampling.temperature))
        proof.require(server.url, version.number, samples, scores)

    def _says_no(self, server: Server, error: ServerError) -> None:
        if type(server.why_not) is not type(error):
            said = str(error).rstrip(".")
            self._warn(f"spec.rollout.servers: {said}. It gets no requests until it serves the newest adapter")
        server.serves, server.why_not = False, error

    async def _until_one_serves(self) -> None:
        """Wait for servers to return if none serves.

        Raises:
            RolloutServerError: none returns in time.
        """
        deadline = time.monotonic() + self._patience
        while self._require_sound() and not self.serving:
            for server in self._servers:
                if server.may_return:
                    self._let_return(server)
            left = deadline - time.monotonic()
            if not self._returning or left <= 0:
                raise RolloutServerError(_none_left(self._servers))
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    async def _stop_returning(self) -> None:
        await _ended(self._returning.values())
        self._returning.clear()


@contextlib.asynccontextmanager
async def open_servers(job: LoRARLJob, out_dir: Path, warn: Callable[[str], None]) -> AsyncIterator[Servers | None]:
    """Yield a job's servers, which forget its adapter when the block ends; None without any.

    `out_dir`: the run's folder, where adapters go unless the job names another one. `warn`: see `Servers`.
    """
    if not job.spec.servers:
        yield None
        return
    named = job.spec.rollout.server_folder
    servers = Servers(job.spec, Path(named, job.name) if named else (out_dir / SERVED).absolute(), warn)
    try:
        yield servers
    finally:
        await servers.close()


async def _ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _none_left(servers: Iterable[Server]) -> str:
    told = "; ".join(str(server.why_not or f"{server.url} does not serve") for server in servers)
    return (
        f"spec.rollout.servers: got no server that generates with the newest adapter ({told}), expected at least one. "
        "Start the servers, and run the same command again: the next start resumes."
    )
