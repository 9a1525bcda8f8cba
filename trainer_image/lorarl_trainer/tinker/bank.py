"""The adapters of all clients on one worker: one is in the trainer, one in the engine, the others in host memory.

One thread uses it, but for `join`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lorarl_trainer.lora.config import Probe
from lorarl_trainer.samples.requests import Accumulated, AdamW, GenerationRequest, UpdateRequest
from lorarl_trainer.samples.sample import Completion
from lorarl_trainer.samples.wire import Samples
from lorarl_trainer.tinker.datums import prompt_sample
from lorarl_trainer.workers.worker import Worker

if TYPE_CHECKING:
    import torch

    from lorarl_trainer.backends.backend import Snapshot
    from lorarl_trainer.backends.optimizer import Parked

BASE = "base"
"""The snapshot that is the base model."""
type Made = Callable[[Completion], None]


@dataclass(frozen=True)
class Wanted:
    """A completion that is wanted, and who takes it."""

    request: GenerationRequest
    made: Made


class Bank:
    """See the file's description."""

    def __init__(self, worker: Worker) -> None:
        """Take over a worker that was started."""
        assert worker.engine is not None, "a service has an engine"
        self._worker, self._engine = worker, worker.engine
        self._trained: str | None = None  # whose adapter the trainer has
        self._parked: dict[str, Parked] = {}
        self._snapshots: dict[str, dict[str, torch.Tensor]] = {}
        self._served: str | None = None  # the snapshot that the engine has
        self._version = 0
        self._numbers = itertools.count()  # of requests
        self._asked: dict[int, Made] = {}
        self._generates: str | None = None  # the snapshot of the requests that are being made
        self._lock = threading.Lock()  # for the last two

    def create(self, model: str, seed: int) -> None:
        """Make a new adapter, which changes nothing yet."""
        self._park()
        self._worker.backend.create_adapter(seed)
        self._worker.backend.optimizer.zero_grad()
        self._trained = model

    def restore(self, model: str, state: Mapping[str, torch.Tensor], updates: int) -> None:
        """Make an adapter of what `snapshot` returned of one, or let a model continue from that."""
        if self._trained != model:
            self._park()
        self._worker.backend.restore(state, updates)
        self._worker.backend.optimizer.zero_grad()
        self._trained = model
        self._parked.pop(model, None)

    def forget(self, model: str) -> None:
        """Give back the memory of a model."""
        self._parked.pop(model, None)
        if self._trained == model:
            self._trained = None

    def accumulate(self, model: str, request: UpdateRequest, *, with_gradient: bool) -> Accumulated:
        """Add the gradient of the samples' loss to those of the model before."""
        self._train(model)
        return self._worker.accumulate(request, with_gradient=with_gradient)

    def forget_gradient(self, model: str) -> None:
        """Forget the gradients since the model's last step."""
        self._train(model)
        self._worker.backend.optimizer.zero_grad()

    def step(self, model: str, numbers: AdamW) -> float:
        """Update a model by its gradients and forget them; return their norm. If it is not finite, nothing changes."""
        self._train(model)
        return self._worker.backend.optim_step(numbers)

    def snapshot(self, model: str) -> Snapshot:
        """Return all of a model's state, before the next call of another method."""
        self._train(model)
        return self._worker.backend.snapshot()

    def keep(self, snapshot: str, model: str) -> None:
        """Keep the model's present adapter to sample from."""
        self._train(model)
        adapter = self._worker.backend.model.export()
        self.add(snapshot, {name: tensor.detach().to("cpu", copy=True) for name, tensor in adapter.items()})

    def add(self, snapshot: str, adapter: dict[str, torch.Tensor]) -> None:
        """Keep an adapter in Hugging Face names, of the worker's rank, to sample from."""
        self._snapshots[snapshot] = adapter
        if self._served == snapshot:
            self._served = None

    def drop(self, snapshot: str) -> None:
        """Give back the memory of a snapshot."""
        self._snapshots.pop(snapshot, None)
        if self._served == snapshot:
            self._served = None

    def has(self, snapshot: str) -> bool:
        """Whether the snapshot is in memory."""
        return snapshot == BASE or snapshot in self._snapshots

    def generate(self, snapshot: str, wanted: Sequence[Wanted]) -> None:
        """Make completions by a snapshot, with those that `join` meanwhile.

        Raises:
            StaleAdapterError: the engine has another adapter. Nothing is generated by it.
        """
        self._serve(snapshot)
        with self._lock:
            self._generates = snapshot
            self._submit(wanted)
        try:
            while self._any_asked():
                for chunk in self._worker.results(next(self._numbers)):
                    for number, completion in zip(chunk.numbers, chunk.completions, strict=True):
                        with self._lock:
                            made = self._asked.pop(number, None)
                        if made is not None:  # one of a generation that failed
                            made(completion)
        finally:
            with self._lock:
                self._generates = None
                self._asked.clear()

    def join(self, snapshot: str, wanted: Sequence[Wanted]) -> bool:
        """Let completions be made with those of this snapshot that are being made; return whether there are any."""
        with self._lock:
            if self._generates != snapshot:
                return False
            self._submit(wanted)
            return True

    def prompt_logprobs(self, snapshot: str, tokens: Sequence[int]) -> np.ndarray:
        """Return the log-probability of each token of a prompt but the first, at temperature 1."""
        if len(tokens) < 2:
            return np.empty(0, np.float32)
        with self._held(snapshot):
            [found] = self._worker.log_probabilities(Samples([prompt_sample(tokens)]), 1.0)
        logprobs: np.ndarray = found
        return logprobs

    def _any_asked(self) -> bool:
        """Whether a completion is still to be made; if not, none can join any more."""
        with self._lock:
            if not self._asked:
                self._generates = None
            return bool(self._asked)

    def _submit(self, wanted: Sequence[Wanted]) -> None:
        numbered = {next(self._numbers): one for one in wanted}
        self._worker.submit({n: replace(one.request, adapter=self._version) for n, one in numbered.items()})
        self._asked |= {number: one.made for number, one in numbered.items()}

    def _serve(self, snapshot: str) -> None:
        if self._served == snapshot:
            return
        self._served = None  # until the engine has it whole
        self._version += 1
        with self._held(snapshot):
            self._worker.sync(self._version)
        self._served = snapshot

    @contextmanager
    def _held(self, snapshot: str) -> Iterator[None]:
        """Let the trainer's adapter have the snapshot's values within the block."""
        backend = self._worker.backend
        if snapshot == BASE:
            self._worker.hold_probe(Probe(gain=0.0))
        else:
            backend.hold(self._snapshots[snapshot])
        try:
            yield
        finally:
            backend.hold(None)

    def _train(self, model: str) -> None:
        """Let the trainer have a model's adapter, with its optimizer and gradients."""
        if self._trained == model:
            return
        self._park()
        self._worker.backend.optimizer.take(self._parked.pop(model))
        self._trained = model

    def _park(self) -> None:
        if self._trained is not None:
            self._parked[self._trained] = self._worker.backend.optimizer.parked()
            self._trained = None
