"""Scoring in small separate processes, so that a function that hangs or crashes costs only its sample."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from lorarl_trainer.devices.host_cpus import host_cpus
from lorarl_trainer.errors import LorarlError
from lorarl_trainer.rewards.backlog import Backlog, Batch, Item
from lorarl_trainer.rewards.output import Output
from lorarl_trainer.rewards.process import ENDED, EXIT_SECONDS, CodeFolders, ScoringProcess
from lorarl_trainer.rewards.scores import Outcome, ToScore

_GRACE_SECONDS = 1.0  # at the limit a process ends its async calls itself, if its loop still runs
_SHARES_PER_PROCESS = 4  # of a sync function: shares are small enough that no process waits long for the last one
_MAX_CONCURRENT = 256
_TRIM_SECONDS = 1.0
"""How often the log is looked at while nothing arrives."""


def usual_processes() -> int:
    """Return how many processes score at a time: one per usable CPU, at most 8."""
    return min(8, host_cpus())


class PoolScorer:
    """Scores by a function `package.module:function(prompt, completion, answer, row) -> float` in several processes.

    In each process, a sync function scores one sample at a time and an async function up to 256. More samples may be
    given while others are being scored: any process that has room takes them.
    """

    def __init__(
        self,
        function: str,
        *,
        timeout_seconds: float,
        code: CodeFolders,
        field: str,
        processes: int | None = None,
        output: Output | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Make a scorer. Nothing starts before `warm_up`.

        Args:
            function: `package.module:function`.
            timeout_seconds: time limit for one sample; past it the call is ended and the sample is left out.
            code: where its module may be.
            field: the reward's path in the manifest, for errors.
            processes: number of processes; None for one per usable core, at most 8.
            output: gets what the function prints; None for this process's own output.
            check: is called once in a thread by `ready`; its InputError says more than the process can.
        """
        self.field, self._check = field, check
        count, output = processes or usual_processes(), output or Output()
        self._backlog = Backlog()
        self._processes = [ScoringProcess(function, code, timeout_seconds, field, output) for _ in range(count)]
        self._servers = [
            _Server(process, self._backlog, timeout_seconds, count, self._wake, output) for process in self._processes
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
            InputError: there is no such module or function, its signature is wrong, or importing its module fails or
                hangs.
        """
        self.warm_up()
        if self._check is not None:
            await asyncio.to_thread(self._check)
            self._check = None
        await asyncio.gather(*(asyncio.wrap_future(server.ready) for server in self._servers))

    async def score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        """Score samples. More may be given meanwhile. Raises InputError if the function cannot be used."""
        await self.ready()
        if not samples:
            return []
        batch = Batch(samples)
        self._backlog.add(batch)
        self._wake()
        return await asyncio.wrap_future(batch.scored)

    def close(self) -> None:
        """End all processes, and everything that they started, at once."""
        self._backlog.fail(LorarlError(ENDED))
        for process in self._processes:
            process.close()
        for server in self._servers:
            if server.ident is not None:
                server.join()

    def _wake(self) -> None:
        for process in self._processes:
            process.wake()


class _Server(threading.Thread):
    """The thread that sends samples to one process and receives its outcomes.

    Attributes:
        ready: future that is done when the process has loaded the function for the first time.
    """

    def __init__(
        self,
        process: ScoringProcess,
        backlog: Backlog,
        limit: float,
        processes: int,
        wake_all: Callable[[], None],
        output: Output,
    ) -> None:
        super().__init__(name="scoring", daemon=True)
        self._process, self._backlog, self._limit = process, backlog, limit
        self._processes, self._wake_all, self._output = processes, wake_all, output
        self._ids = itertools.count()
        self._under_way: dict[int, Item] = {}  # in the order of sending; the first has the earliest deadline
        self.ready: Future[None] = Future()
        self.ready.set_running_or_notify_cancel()

    def run(self) -> None:
        """Score until the process is closed, or cannot be restarted."""
        try:
            self._process.ready()
        except Exception as error:  # noqa: BLE001  raised in the thread that waits
            self.ready.set_exception(error)
            return
        self.ready.set_result(None)
        try:
            while True:
                self._turn()
        except Exception as error:  # noqa: BLE001  raised in the threads that wait
            self._backlog.fail(error)

    def _turn(self) -> None:
        """Send samples if there is room, and receive one outcome."""
        if not self._under_way:
            self._process.ready()
        items = self._backlog.take(self._room(), self._shares(), idle=not self._under_way)
        if not items and not self._under_way:
            self._process.sleep()
            return
        try:
            if items:
                self._send(items)
            self._receive()
        except (TimeoutError, BlockingIOError):
            self._process.end()
            self._stopped(Outcome.failed("timeout", f"took more than {self._limit:g} s, the reward's timeoutSeconds"))
        except (EOFError, OSError):
            self._stopped(Outcome.failed("crash", f"the process {self._process.end(EXIT_SECONDS)}"))

    def _room(self) -> int:
        """Return how many samples the process can take now."""
        first = next(iter(self._under_way.values()), None)
        if first is not None and (first.alone or not self._process.is_async):
            return 0
        return _MAX_CONCURRENT - len(self._under_way)

    def _shares(self) -> int:
        return self._processes * (1 if self._process.is_async else _SHARES_PER_PROCESS)

    def _send(self, items: Sequence[Item]) -> None:
        numbered = [(next(self._ids), item) for item in items]
        self._under_way.update(numbered)
        deadline = time.monotonic() + self._limit + _GRACE_SECONDS
        for item in items:
            item.deadline = deadline
        self._process.send([(number, item.sample) for number, item in numbered])
        self._start_clock()

    def _receive(self) -> None:
        self._output.trim()
        first = next(iter(self._under_way.values()))
        if reply := self._process.receive(min(first.deadline - time.monotonic(), _TRIM_SECONDS)):
            number, outcome = reply
            self._backlog.settle(self._under_way.pop(number), outcome)
            self._start_clock()
        elif time.monotonic() >= first.deadline:
            raise TimeoutError

    def _start_clock(self) -> None:
        """Restart the time limit of a sync function's first sample: the others wait for it."""
        if self._under_way and not self._process.is_async:
            next(iter(self._under_way.values())).deadline = time.monotonic() + self._limit

    def _stopped(self, outcome: Outcome) -> None:
        """Continue after the process has ended: the sample at fault gets this outcome, the others are scored again."""
        unfinished = list(self._under_way.values())
        self._under_way.clear()
        # With a sync function only the first unfinished sample was running. With an async one all were, so each is
        # tried alone.
        if not self._process.is_async or len(unfinished) == 1:
            self._backlog.settle(unfinished[0], outcome)
            self._backlog.put_back(unfinished[1:], alone=False)
        else:
            self._backlog.put_back(unfinished, alone=True)
        self._wake_all()
