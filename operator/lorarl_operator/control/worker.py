"""A worker beside the controller's: it takes keys from a queue of its kind, and is patient with the API server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from lorarl_operator import logs, metrics
from lorarl_operator.control.cache import Key
from lorarl_operator.control.workqueue import WorkQueue
from lorarl_operator.decide.decision import Event, operator_fault, refused_change
from lorarl_operator.kube.errors import ApiError, NotLeaderError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Worker:
    """What is done for each key, and how a failure is reported.

    Attributes:
        make: Does it for one key.
        kind: What a key names, for the log: job or sweep.
        what: What is done, for the log and for Events.
        conflict_seconds: After which time a key is taken again if its objects have changed meanwhile.
        tell: Records an Event about what a key names.
    """

    queue: WorkQueue[Key]
    make: Callable[[Key], Awaitable[None]]
    kind: str
    what: str
    conflict_seconds: float
    tell: Callable[[Key, Event], None]

    async def work(self) -> None:
        """Work forever. A key that fails does not stop the others."""
        while True:
            key = await self.queue.get()
            with logs.about(namespace=key[0], **{self.kind: key[1]}):
                try:
                    await self._work_on(key)
                finally:
                    self.queue.done(key)

    async def _work_on(self, key: Key) -> None:
        try:
            await self.make(key)
        except ApiError as error:
            if error.conflict or error.not_found:  # The watch is about to bring the news.
                self.queue.add_after(key, self.conflict_seconds)
            else:
                self._failed(key, f"api-{error.status or 'timeout'}", error, error.retry_after or 0.0)
                if error.refused:
                    self.tell(key, refused_change(error))
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            self._failed(key, "cancelled", error)  # Not this worker was cancelled, but its request: see Controller.
        except NotLeaderError as error:
            self._failed(key, "fenced", error)
        except Exception as error:
            log.exception("%s/%s: %s failed", *key, self.what)
            self._failed(key, type(error).__name__, error)
            self.tell(key, operator_fault(self.what, error))
        else:
            self.queue.forget(key)

    def _failed(self, key: Key, cause: str, error: BaseException, at_least: float = 0.0) -> None:
        metrics.ERRORS.labels(cause).inc()
        delay = self.queue.add_rate_limited(key, at_least)
        log.warning("%s/%s: %s is tried again in %.1f s: %s", *key, self.what, delay, error)
