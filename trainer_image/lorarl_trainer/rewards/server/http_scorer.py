"""A scorer that asks a server over HTTP, in its own event loop, so its connections outlive each caller's."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lorarl_trainer.rewards.scores import Outcome, ToScore
from lorarl_trainer.rewards.server.client import Client, Read
from lorarl_trainer.storage.secrets import read_api_key


class HttpScorer(ABC):
    """Asks a server for each completion. A subclass says what is asked, and what the answer means."""

    def __init__(self, url: str, *, field: str, credentials_secret: str | None, **settings: Any) -> None:
        """Make a scorer. Nothing starts before it is used.

        `credentials_secret`: the Secret with the key; None sends none.
        """
        self.field, self._secret = field, credentials_secret
        self._make: Callable[[Mapping[str, str]], Client] = partial(Client, url, **settings)
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Client | None = None

    @abstractmethod
    def _request(self, sample: ToScore) -> tuple[dict[str, Any], Read]:
        """Return the body of the request about a completion, and what reads the answer."""

    def warm_up(self) -> None:  # noqa: B027 - nothing to do: connections are made when they are needed
        """Do nothing."""

    async def ready(self) -> None:
        """Read the key.

        Raises:
            InputError: the Secret has none. The server itself may still be starting, so it is not asked.
        """
        self._headers()

    async def score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        """Score samples. More may be given meanwhile. Raises InputError if the Secret has no key."""
        loop = self._started()
        asked = asyncio.run_coroutine_threadsafe(self._score(samples), loop)
        return await asyncio.wrap_future(asked)

    def close(self) -> None:
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    async def _score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        client = self._client = self._client or self._make(self._headers())
        return await asyncio.gather(*(client.score(*self._request(sample)) for sample in samples))

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
        if (name := self._secret) is None:
            return {}
        key = read_api_key(name, f"{self.field}.credentialsSecret")
        return {"Authorization": f"Bearer {key}"}
