"""Scoring in small processes of their own, so that a function that hangs or crashes costs its sample and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.rewards.scores import Outcome, Sample, Scores, collect

START_SECONDS = 300.0
"""Longest time that importing the function's module may take."""
_GRACE_SECONDS = 1.0  # a process with async functions ends them itself at the limit, if its loop still runs
_EXIT_SECONDS = 1.0  # a process that crashed hangs up a moment before it is gone
_CHUNKS_A_PROCESS = 4  # small enough that no process waits long for the last one
_ASYNC_CHUNK = 256


class PoolScorer:
    """Scores by a function `package.module:function(prompt, completion, answer, row) -> float` in several processes.

    A sync function scores one sample after the other in each process; of an async one, up to 256 calls run at once in each.
    """

    def __init__(
        self, function: str, *, timeout_seconds: float, search_path: Sequence[Path], field: str, processes: int | None = None
    ) -> None:
        """Make a scorer; nothing starts before `warm_up`.

        Args:
            function: `package.module:function`.
            timeout_seconds: Longest time for one sample; past it the function is ended and the sample left out.
            search_path: Folders to look in after the Python path.
            field: The reward's path in the manifest, to name it in errors.
            processes: How many; one for each usable core, 8 at most, when None.
        """
        self._field = field
        count = processes or min(8, len(os.sched_getaffinity(0)))
        path = [*sys.path, *(str(folder) for folder in search_path)]
        self._processes = [_ScoringProcess(function, path, timeout_seconds, field) for _ in range(count)]
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="scoring")

    def warm_up(self) -> None:
        """Start the processes, which import the function's module meanwhile."""
        for process in self._processes:
            process.start()

    async def ready(self) -> None:
        """Wait until every process has the function.

        Raises:
            InputError: No such module or function, a wrong signature, or its module fails or does not end when imported.
        """
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._threads, process.ready) for process in self._processes))

    async def score(self, samples: Sequence[Sample]) -> Scores:
        """Score the samples of a step.

        Raises:
            InputError: Not one of them could be scored, or the function cannot be used at all.
        """
        await self.ready()
        if not samples:
            return collect([], self._field)
        idle: asyncio.Queue[_ScoringProcess] = asyncio.Queue()
        for process in self._processes:
            idle.put_nowait(process)
        is_async = self._processes[0].is_async
        shares = len(self._processes) * (1 if is_async else _CHUNKS_A_PROCESS)
        size = min(-(-len(samples) // shares), _ASYNC_CHUNK)
        outcomes: dict[int, Outcome] = {}
        chunks = [list(range(start, min(start + size, len(samples)))) for start in range(0, len(samples), size)]
        await asyncio.gather(*(self._score_chunk(chunk, samples, idle, outcomes) for chunk in chunks))
        return collect([outcomes[index] for index in range(len(samples))], self._field)

    async def _score_chunk(
        self, chunk: list[int], samples: Sequence[Sample], idle: asyncio.Queue[_ScoringProcess], outcomes: dict[int, Outcome]
    ) -> None:
        process = await idle.get()
        try:
            work = [samples[index] for index in chunk]
            done, stopped = await asyncio.get_running_loop().run_in_executor(self._threads, process.score, work)
        finally:
            idle.put_nowait(process)
        outcomes.update({chunk[position]: outcome for position, outcome in done.items()})
        left = [index for index in chunk if index not in outcomes]
        if stopped is None:
            return
        # Of a sync function's samples the first one left was running; of an async one's all were, so each is tried alone.
        if not process.is_async or len(left) == 1:
            outcomes[left[0]] = stopped
            again = [left[1:]] if left[1:] else []
        else:
            again = [[index] for index in left]
        await asyncio.gather(*(self._score_chunk(rest, samples, idle, outcomes) for rest in again))

    def close(self) -> None:
        """End all processes, and what they started, at once."""
        for process in self._processes:
            process.close()
        self._threads.shutdown()


class _ScoringProcess:
    """One process and our end of the connection to it; started anew after it had to be ended. One thread scores at a time."""

    def __init__(self, function: str, path: list[str], limit: float, field: str) -> None:
        self._function, self._path, self._limit, self._field = function, path, limit, field
        self._scoring = threading.Lock()
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._is_ready = self._closed = False
        self.is_async = False

    def start(self) -> None:
        with self._starting:
            if self._closed:
                raise LorarlError("The reward's processes were ended while completions were being scored.")
            if self._process is not None:
                return
            ours, theirs = socket.socketpair()
            with theirs:
                # -P: neither the folder of worker.py nor the working directory may hide modules of the standard library.
                command = [sys.executable, "-P", str(Path(__file__).with_name("worker.py")), str(theirs.fileno()), str(os.getpid())]
                # A session of its own: Ctrl-C is the trainer's matter, and what the function starts can be ended with it.
                self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
            self._connection = Connection(ours.detach())
            self._connection.send((self._function, self._path))

    def ready(self) -> None:
        with self._scoring:
            self._ready()

    def _ready(self) -> Connection:
        if self._process is not None and self._process.poll() is not None:
            self._end()  # died while idle, as by the kernel when memory ran out
        self.start()
        connection = self._connection
        assert connection is not None
        if self._is_ready:
            return connection
        try:
            reply = connection.recv() if connection.poll(START_SECONDS) else None
        except (EOFError, OSError):
            got, mend = f"{self._function}, whose module ended the process when imported: it {self._end(_EXIT_SECONDS)}", "Mend the module."
        else:
            if reply is not None and reply[0] == "ready":
                self._is_ready, self.is_async = True, reply[1]
                return connection
            got, mend = reply[1:] if reply else (f"{self._function}, whose module is not imported after {START_SECONDS:g} s", "Mend it.")
            self._end()
        raise InputError(self._field, got, "a function package.module:function(prompt, completion, answer, row)", mend)

    def score(self, samples: Sequence[Sample]) -> tuple[dict[int, Outcome], Outcome | None]:
        """Score samples in order; where the process had to be ended or died, also say why it did."""
        with self._scoring:
            connection = self._ready()
            done: dict[int, Outcome] = {}
            stopped = None
            deadline = time.monotonic() + self._limit + _GRACE_SECONDS
            try:
                connection.send((self._limit, [(sample.prompt, sample.completion, sample.answer, sample.row) for sample in samples]))
                while len(done) < len(samples) and stopped is None:
                    if connection.poll(max(0.0, deadline - time.monotonic()) if self.is_async else self._limit):
                        position, value, cause, message = connection.recv()
                        done[position] = Outcome(value, cause, message)
                    else:
                        self._end()
                        stopped = Outcome.failed("timeout", f"took more than {self._limit:g} s")
            except (EOFError, OSError):
                stopped = Outcome.failed("crash", f"the process {self._end(_EXIT_SECONDS)}")
            if stopped is not None:
                self.start()  # imports the module while others score
            return done, stopped

    def _end(self, patience: float = 0.0) -> str:
        """End the process and what it started; say how it ended."""
        with self._starting:
            process, connection = self._process, self._connection
            self._process = self._connection = None
            self._is_ready = False
        if process is None or connection is None:
            return "was ended"
        ended = _kill(process, patience)
        connection.close()
        return ended

    def close(self) -> None:
        """Let no other process start, and end this one; a thread that waits for it notices."""
        with self._starting:
            self._closed = True
            process = self._process
        if process is not None:
            _kill(process)


def _kill(process: subprocess.Popen[bytes], patience: float = 0.0) -> str:
    """End a process with its group; say how it ended by itself, if it did within `patience` seconds."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    status = process.poll()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if status is None:
        return "was ended"
    return f"exited with code {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"
