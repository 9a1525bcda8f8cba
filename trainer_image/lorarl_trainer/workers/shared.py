"""One worker for several trials: the base model is loaded once, and each call is the turn of one trial.

A turn brings the trial's adapter into the trainer, with all that belongs to it, and before a generation into the
engine. Completions of two trials are never made together, so each trial computes what it would alone.
"""

from __future__ import annotations

import itertools
import os
import select
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu, Host
from lorarl_trainer.devices.host_memory import host_memory
from lorarl_trainer.errors import (
    FencedError,
    InputError,
    StaleAdapterError,
    StorageError,
    WorkerError,
    in_one_line,
)
from lorarl_trainer.protocols.workers import Built, JobCheckpoints
from lorarl_trainer.samples.wire import CompletionChunk, Completions
from lorarl_trainer.workers.checkpoints import CheckpointingWorker
from lorarl_trainer.workers.parking import Parking
from lorarl_trainer.workers.worker import Rank

if TYPE_CHECKING:
    from lorarl_trainer.lora.initial import InitialAdapter
    from lorarl_trainer.samples.requests import GenerationRequest

ALONE = Rank(rank=0, world_size=1, local_rank=0, master_address=None, master_port=None)
_PARKED_BYTES = 4 * 4
"""Of each parameter of a parked adapter: its master, two moments and its gradient, in fp32."""


class _GoneError(WorkerError):
    """A call of a trial whose process has ended."""


_OF_THE_TRIAL = (InputError, StorageError, FencedError, _GoneError)
"""What goes wrong for one trial. After any other failure, the state of model and engine is not known."""
_CHANGES = ("restore", "update", "hold_probe")
"""Calls after which the engine's adapter is not the trainer's until the next sync."""


@dataclass
class _Seat:
    """What the worker has of a trial.

    Attributes:
        process: a handle of the trial's process, which ends with it.
        worker: the trial's own, with its checkpoints, on the model that all share.
        version, in_engine: of the adapter that was synced last, as the trial and as the engine names it.
        changed: the trainer's adapter has changed since that sync.
        waiting: requests that came while another trial had its turn.
        asked: numbers of requests that have not ended.
    """

    process: int
    worker: CheckpointingWorker
    version: int = 0
    in_engine: int = 0
    changed: bool = True
    waiting: dict[int, GenerationRequest] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)

    def named(self, request: GenerationRequest) -> GenerationRequest:
        """Return a request with its adapter as the engine names it.

        Raises:
            StaleAdapterError: the trial has synced another version.
        """
        if request.adapter is None:
            return request
        if request.adapter != self.version:
            raise StaleAdapterError(f"{request.asked_by}: adapter version {self.version}, expected {request.adapter}")
        return replace(request, adapter=self.in_engine)


class SharedWorker:
    """An actor of Ray. One thread makes the turns, in the order in which they were asked for.

    Others take requests for the generation under way, and do what needs checkpoints alone.
    """

    def __init__(self, spec: LoRARLJobSpec, log: Path | None, seats: int) -> None:
        """Set up the process.

        Args:
            spec: a trial's, for what all have in common.
            log: see `Worker`.
            seats: most trials that are here at a time.
        """
        self._common = CheckpointingWorker(spec, ALONE, log)
        self._most = seats
        self._loaded: tuple[Path, tuple[int, ...], Gpu | Host] | None = None  # what the first trial saw
        self._parking: Parking | None = None
        self._opened: dict[str, JobCheckpoints] = {}
        self._seats: dict[str, _Seat] = {}
        self._served: str | None = None  # whose adapter the engine has
        self._generating: _Seat | None = None
        self._requests = threading.Lock()  # guards that, and what seats have of requests
        self._versions = itertools.count(1)  # in the engine, whose prefix cache knows adapters by them
        self._broken = ""
        self._culprit = ""
        self._over = threading.Event()

    def preload(self) -> None:
        """See `Worker.preload`."""
        self._common.preload()

    def memory(self) -> Gpu | Host:
        """See `Worker.memory`. It changes when the model is loaded, which follows what the first trial saw."""
        return self._common.memory()

    def open_checkpoints(self, trial: str, of: JobCheckpoints) -> None:
        """Name a trial's checkpoints, which `start` opens."""
        self._opened[trial] = of

    def start(
        self,
        trial: str,
        process: int,
        spec: LoRARLJobSpec,
        model_path: Path,
        stop_token_ids: tuple[int, ...],
        initial_adapter: InitialAdapter | None,
        there: Gpu | Host,
        teacher: InitialAdapter | None,
    ) -> Built:
        """Give a trial a seat, and make its adapter. The first trial's call loads the model. See `Worker.start`.

        `process`: the trial's, on this machine. Its seat is free when that ends.

        Raises:
            InputError: the trial cannot be trained beside the others.
        """
        with self._whole(trial):
            self._free_seats()
            handle = _handle(process)
            if self._parking is None:
                self._common.load(model_path, stop_token_ids, there)
                self._loaded = model_path, stop_token_ids, there
                self._parking = Parking(self._common.backend)
            self._require_alike(spec, model_path, stop_token_ids)
            self._leave(trial)
            self._require_room()
            worker = self._common.beside(spec)
            worker.open_checkpoints(self._opened.pop(trial))
            with self._parking.making(trial):
                self._common.backend.begin_job(spec)
                built = worker.begin(initial_adapter, teacher)
            self._seats[trial] = _Seat(handle, worker)
            return built

    def turn(self, trial: str, method: str, *arguments: Any) -> Any:
        """Call a method of the trial's worker that uses the model."""
        with self._whole(trial):
            seat = self._brought(trial)
            seat.changed = seat.changed or method in _CHANGES
            return getattr(seat.worker, method)(*arguments)

    def sync(self, trial: str, version: int, verify: bool) -> float:
        """Bring the trial's adapter to the engine as this version of it. See `Worker.sync`."""
        with self._whole(trial):
            seat = self._brought(trial)
            seat.version, seat.in_engine = version, next(self._versions)
            return self._serve(trial, verify)

    def submit(self, trial: str, requests: Mapping[int, GenerationRequest]) -> None:
        """Queue requests of a trial. See `Worker.submit`."""
        with self._requests:
            seat = self._seats[trial]
            named = {number: seat.named(request) for number, request in requests.items()}
            if self._generating is seat:
                seat.worker.submit(named)
            else:
                seat.waiting |= named
            seat.asked |= named.keys()

    def results(self, trial: str, until: int) -> Iterator[CompletionChunk]:
        """Generate what a trial has queued, and queues meanwhile. See `Worker.results`."""
        with self._whole(trial):
            seat = self._seat(trial)
            if self._served != trial:
                self._serve_again(trial)
            with self._requests:
                self._generating = seat
                seat.worker.submit(seat.waiting)
                seat.waiting.clear()
            chunks = self._made(seat, until)
            try:
                for chunk in chunks:  # noqa: UP028  # `yield from` would close it
                    yield chunk
            except GeneratorExit:  # the trial is gone; the next one finds an engine without requests
                for _ in chunks:
                    pass
                raise

    def _made(self, seat: _Seat, until: int) -> Iterator[CompletionChunk]:
        while self._generating:
            for chunk in seat.worker.results(until):
                with self._requests:
                    seat.asked -= set(chunk.numbers)
                # With the version as the trial names it.
                made = (replace(one, adapter_version=seat.version) for one in chunk.completions)
                yield replace(chunk, completions=Completions(made))
            with self._requests:
                if not seat.asked:  # otherwise some came when the engine had just ended
                    self._generating = None

    def aside(self, trial: str, method: str, *arguments: Any) -> Any:
        """Call a method of the trial's worker that needs no model, beside the turns."""
        return getattr(self._seats[trial].worker, method)(*arguments)

    def process(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def present(self) -> int:
        """Return how many trials are here whose processes run."""
        return sum(not _ended(seat.process) for seat in list(self._seats.values()))

    def failed(self) -> str:
        """Wait until the worker is of no use any more; return the trial in whose turn that happened."""
        self._over.wait()
        return self._culprit

    def _brought(self, trial: str) -> _Seat:
        assert self._parking is not None, "`start` comes before"
        seat = self._seat(trial)
        self._parking.bring(trial)
        return seat

    def _seat(self, trial: str) -> _Seat:
        """Return a trial's seat, after those of ended processes were freed: their last calls may still come."""
        self._free_seats()
        if trial not in self._seats:
            raise _GoneError(f"the process of {trial} has ended")
        return self._seats[trial]

    def _serve_again(self, trial: str) -> None:
        """Bring the version that a trial synced last back to the engine, in the place of another trial's."""
        seat = self._brought(trial)
        if seat.changed:
            raise StaleAdapterError(f"{trial} would generate without a sync after its adapter changed")
        self._serve(trial)

    def _serve(self, trial: str, verify: bool = False) -> float:
        seat, self._served = self._seats[trial], None
        seconds = seat.worker.sync(seat.in_engine, verify)
        self._served, seat.changed = trial, False
        return seconds

    def _require_alike(self, spec: LoRARLJobSpec, model_path: Path, stop_token_ids: tuple[int, ...]) -> None:
        """Require that a trial alone would be planned as the worker is.

        Raises:
            InputError: it would not.
        """
        from lorarl_trainer.planning.plan import plan_job

        hint = "Train it without --share."
        assert self._loaded is not None, "the model is loaded"
        (path, stops, there), plan = self._loaded, self._common.plan
        if spec.algorithm.about.critic != (self._common.backend.critic is not None):
            raise InputError("--share", "trials with a critic and some without", "trials alike", hint)
        planned = plan_job(spec, model_path, there)
        if replace(planned, table=plan.table) != plan:
            raise InputError("--share", "a trial that is planned otherwise than the first", "trials alike", hint)
        if (path, stops) != (model_path, stop_token_ids):
            raise InputError("--share", "a trial of another model or tokenizer", "those of the first trial", hint)

    def _require_room(self) -> None:
        """Require that the main memory holds the adapters of all trials that may come.

        Raises:
            InputError: it does not.
        """
        backend = self._common.backend
        adapters = 1 if backend.critic is None else 2
        each, free = _PARKED_BYTES * adapters * backend.counts().trainable, host_memory().free
        if (more := self._most - len(self._seats)) * each > free:
            got = f"{self._most} trials, of which {more} more need {each / 1e9:.1f} GB of main memory each"
            expected = f"at most {len(self._seats) + free // each}, for which {free / 1e9:.1f} GB are free"
            raise InputError("--at-once", got, expected, "Set a smaller --at-once, or a smaller spec.adapter.rank.")

    def _free_seats(self) -> None:
        for trial in [trial for trial, seat in self._seats.items() if _ended(seat.process)]:
            self._leave(trial)

    def _leave(self, trial: str) -> None:
        """Let a trial's adapter and checkpoints go."""
        if (seat := self._seats.pop(trial, None)) is not None:
            os.close(seat.process)
            seat.worker.close()
            if self._parking is not None:
                self._parking.forget(trial)
            self._served = None if self._served == trial else self._served

    @contextmanager
    def _whole(self, trial: str) -> Iterator[None]:
        """Make a turn, unless one failed in a way that the next ones cannot be trusted.

        Raises:
            WorkerError: one did.
        """
        if self._broken:
            raise WorkerError(f"the worker that trials share has ended after a failure of {self._broken}")
        try:
            yield
        except (*_OF_THE_TRIAL, GeneratorExit):
            raise
        except BaseException as error:
            self._broken, self._culprit = f"{trial}: {in_one_line(error)}", trial
            self._over.set()
            raise


def _handle(process: int) -> int:
    try:
        return os.pidfd_open(process)
    except ProcessLookupError as error:
        raise _GoneError(f"process {process} has ended") from error


def _ended(process: int) -> bool:
    """Return whether the process of a handle has ended."""
    with suppress(OSError):
        return bool(select.select([process], [], [], 0)[0])
    return True  # the handle is closed
