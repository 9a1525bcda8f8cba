"""Scores completions by a judge or a reward model that is reached over HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import partial

from lorarl_api.v1alpha1 import ServerReward
from lorarl_trainer.errors import InputError
from lorarl_trainer.rewards.scores import Outcome, ToScore
from lorarl_trainer.rewards.server.apis import PATHS, request_body, score_of, status_hint
from lorarl_trainer.rewards.server.client import FIRST_PAUSE_SECONDS, Client
from lorarl_trainer.storage.secrets import JUDGE_KEY, read_secret


class ServerScorer:
    """Asks a server for each completion. It has its own event loop, so its connections outlive each caller's."""

    def __init__(
        self,
        spec: ServerReward,
        *,
        timeout_seconds: float,
        field: str,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    ) -> None:
        """Make a scorer. Nothing starts before it is used.

        Args:
            spec: `reward.server`.
            timeout_seconds: time limit of one request.
            field: its path in the manifest, for errors.
            first_pause_seconds: before a request is repeated for the first time.
        """
        self._spec, self.field = spec, field
        self._make = partial(
            Client,
            f"{spec.url.rstrip('/')}{PATHS[spec.api]}",
            read=partial(score_of, spec),
            hint=partial(status_hint, spec),
            timeout_seconds=timeout_seconds,
            retries=spec.retries,
            concurrency=spec.concurrency,
            first_pause_seconds=first_pause_seconds,
        )
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Client | None = None

    def warm_up(self) -> None:
        """Do nothing: connections are made when they are needed."""

    async def ready(self) -> None:
        """Read the key.

        Raises:
            InputError: the Secret has none. The server itself may still be starting, so it is not asked.
        """
        self._headers()

    async def score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        """Score samples. More may be given meanwhile.

        Raises:
            InputError: the Secret has no key.
        """
        loop = self._started()
        asked = asyncio.run_coroutine_threadsafe(self._score(samples), loop)
        return await asyncio.wrap_future(asked)

    def close(self) -> None:
        """End all requests."""
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    async def _score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        client = self._client = self._client or self._make(self._headers())
        return await asyncio.gather(*(client.score(request_body(self._spec, sample)) for sample in samples))

    async def _end(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="reward server", daemon=True)
                self._thread.start()
            return self._loop

    def _headers(self) -> dict[str, str]:
        if (name := self._spec.credentials_secret) is None:
            return {}
        field = f"{self.field}.credentialsSecret"
        if (key := read_secret(name, field, JUDGE_KEY).get(JUDGE_KEY)) is None:
            expected = f"a Secret with the key {JUDGE_KEY}"
            raise InputError(field, f"{name!r} without the key {JUDGE_KEY}", expected, f"Add {JUDGE_KEY}.")
        return {"Authorization": f"Bearer {key}"}
