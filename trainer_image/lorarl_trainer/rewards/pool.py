"""Scoring in small processes of their own, so that a function that hangs or crashes costs its sample and nothing else."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from lorarl_trainer.errors import LorarlError
from lorarl_trainer.rewards.backlog import Batch, Item, Waiting
from lorarl_trainer.rewards.process import ENDED, EXIT_SECONDS, ScoringProcess
from lorarl_trainer.rewards.scores import Outcome, ToScore

_GRACE_SECONDS = 1.0  # a process with async functions ends them itself at the limit, if its loop still runs
_SHARES_A_PROCESS = 4  # a sync function's: small enough that no process waits long for the last one
_MOST_AT_ONCE = 256


class PoolScorer:
    """Scores by a function `package.module:function(prompt, completion, answer, row) -> float` in several processes.

    A sync function scores one sample after the other in each process; of an async one, up to 256 calls run at once in each.
    Samples may come while others are being scored: whichever process is free, or has room, takes them.
    """

    def __init__(
        self,
        function: str,
        *,
        timeout_seconds: float,
        search_path: Sequence[Path],
        field: str,
        processes: int | None = None,
    ) -> None:
        """Make a scorer; nothing starts before `warm_up`.

        Args:
            function: `package.module:function`.
            timeout_seconds: Longest time for one sample; past it the function is ended and the sample left out.
            search_path: Folders to look in after the Python path.
            field: The reward's path in the manifest, to name it in errors.
            processes: How many; one for each usable core, 8 at most, when None.
        """
        self.field = field
        count = processes or min(8, len(os.sched_getaffinity(0)))
        path = [*sys.path, *(str(folder) for folder in search_path)]
        self._waiting = Waiting()
        self._processes = [ScoringProcess(function, path, timeout_seconds, field) for _ in range(count)]
        self._servers = [
            _Server(process, self._waiting, timeout_seconds, count, self._wake) for process in self._processes
        ]

    def warm_up(self) -> None:
        """Start the processes, which import the function's module meanwhile."""
        for process, server in zip(self._processes, self._servers, strict=True):
            if server.ident is None:
                process.start()
                server.start()

    async def ready(self) -> None:
        """Wait until every process has the function.

        Raises:
            InputError: No such module or function, a wrong signature, or its module fails or does not end when imported.
        """
        self.warm_up()
        await asyncio.gather(*(asyncio.wrap_future(server.ready) for server in self._servers))

    async def score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        """Score samples; more may come meanwhile.

        Raises:
            InputError: The function cannot be used at all.
        """
        await self.ready()
        if not samples:
            return []
        batch = Batch(samples)
        self._waiting.add(batch)
        self._wake()
        return await asyncio.wrap_future(batch.scored)

    def close(self) -> None:
        """End all processes, and what they started, at once."""
        self._waiting.fail(LorarlError(ENDED))
        for process in self._processes:
            process.close()
        for server in self._servers:
            if server.ident is not None:
                server.join()

    def _wake(self) -> None:
        for process in self._processes:
            process.wake()


class _Server(threading.Thread):
    """The thread that brings samples to one process and takes its outcomes.

    Attributes:
        ready: done when the process has the function for the first time.
    """

    def __init__(
        self, process: ScoringProcess, waiting: Waiting, limit: float, processes: int, wake_all: Callable[[], None]
    ) -> None:
        super().__init__(name="scoring", daemon=True)
        self._process, self._waiting, self._limit, self._processes, self._wake_all = (
            process,
            waiting,
            limit,
            processes,
            wake_all,
        )
        self._names = itertools.count()
        self._under_way: dict[int, Item] = {}  # in the order in which they were sent; the first has the first deadline
        self.ready: Future[None] = Future()
        self.ready.set_running_or_notify_cancel()

    def run(self) -> None:
        """Score until the process is closed, or cannot be started anew."""
        try:
            self._process.ready()
        except Exception as error:  # noqa: BLE001  whoever waits is told
            self.ready.set_exception(error)
            return
        self.ready.set_result(None)
        try:
            while True:
                self._turn()
        except Exception as error:  # noqa: BLE001  whoever waits is told
            self._waiting.fail(error)

    def _turn(self) -> None:
        """Hand over samples where there is room, and take one outcome."""
        if not self._under_way:
            self._process.ready()
        items = self._waiting.take(self._room(), self._shares(), idle=not self._under_way)
        if not items and not self._under_way:
            self._process.sleep()
            return
        try:
            if items:
                self._send(items)
            self._receive()
        except (TimeoutError, BlockingIOError):
            self._process.end()
            self._stopped(Outcome.failed("timeout", f"took more than {self._limit:g} s"))
        except (EOFError, OSError):
            self._stopped(Outcome.failed("crash", f"the process {self._process.end(EXIT_SECONDS)}"))

    def _room(self) -> int:
        """Return how many samples the process may take now."""
        first = next(iter(self._under_way.values()), None)
        if first is not None and (first.alone or not self._process.is_async):
            return 0
        return _MOST_AT_ONCE - len(self._under_way)

    def _shares(self) -> int:
        return self._processes * (1 if self._process.is_async else _SHARES_A_PROCESS)

    def _send(self, items: Sequence[Item]) -> None:
        named = [(next(self._names), item) for item in items]
        self._under_way.update(named)
        deadline = time.monotonic() + self._limit + _GRACE_SECONDS
        for item in items:
            item.deadline = deadline
        self._process.send([(name, item.sample) for name, item in named])
        self._start_clock()

    def _receive(self) -> None:
        first = next(iter(self._under_way.values()))
        if reply := self._process.receive(first.deadline - time.monotonic()):
            name, outcome = reply
            self._waiting.settle(self._under_way.pop(name), outcome)
            self._start_clock()
        elif time.monotonic() >= first.deadline:
            raise TimeoutError

    def _start_clock(self) -> None:
        """Begin a sync function's time for the first sample: the others wait for it."""
        if self._under_way and not self._process.is_async:
            next(iter(self._under_way.values())).deadline = time.monotonic() + self._limit

    def _stopped(self, outcome: Outcome) -> None:
        """Go on after the process has been ended: the sample at fault has this outcome, the others are scored again."""
        left = list(self._under_way.values())
        self._under_way.clear()
        # Of a sync function's samples the first one left was running; of an async one's all were, so each is tried alone.
        if not self._process.is_async or len(left) == 1:
            self._waiting.settle(left[0], outcome)
            self._waiting.put_back(left[1:], alone=False)
        else:
            self._waiting.put_back(left, alone=True)
        self._wake_all()
