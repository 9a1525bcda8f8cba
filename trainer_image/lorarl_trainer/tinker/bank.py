"""The adapters of all clients on one worker: one is in the trainer, some in the engine, the others in host memory.

One thread uses it, but for `hurry`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lorarl_trainer.errors import StaleAdapterError
from lorarl_trainer.lora.config import Probe
from lorarl_trainer.rollout.collect import require_version
from lorarl_trainer.samples.requests import Accumulated, AdamW, GenerationRequest, UpdateRequest
from lorarl_trainer.samples.sample import Completion
from lorarl_trainer.samples.wire import Samples
from lorarl_trainer.tinker.datums import prompt_sample
from lorarl_trainer.workers.parking import Parking
from lorarl_trainer.workers.worker import Worker

if TYPE_CHECKING:
    import torch

    from lorarl_trainer.backends.backend import Snapshot

BASE = "base"
"""The snapshot that is the base model."""
_VERSIONS = itertools.count(1)
"""Of snapshots. None is used twice in a process, whose engine may know prefixes by their versions."""
type Made = Callable[[Completion], None]


@dataclass(frozen=True)
class Wanted:
    """A completion that is wanted, and who takes it."""

    request: GenerationRequest
    made: Made


class Bank:
    """See the file's description.

    A snapshot that is sampled from has a slot of the engine. The one that was not used for longest makes room.

    Attributes:
        slots: how many snapshots the engine has at a time.
    """

    def __init__(self, worker: Worker) -> None:
        """Take over a worker that was started."""
        assert worker.engine is not None, "a service has an engine"
        self._worker, self._engine = worker, worker.engine
        self._parking = Parking(worker.backend)
        self._snapshots: dict[str, dict[str, torch.Tensor]] = {}
        self._versions = {BASE: next(_VERSIONS)}  # of each snapshot, as the engine names it
        self.slots = len(self._engine.engine.slots)
        # The slot of each snapshot in the engine; that which was used last is at the end.
        self._served: dict[str, int] = {}
        self._numbers = itertools.count()  # of requests
        self._asked: dict[int, tuple[int, Made]] = {}  # with the version that is to make it

    def create(self, model: str, seed: int) -> None:
        """Make a new adapter, which changes nothing yet."""
        with self._parking.making(model):
            self._worker.backend.create_adapter(seed)
            self._worker.backend.optimizer.zero_grad()

    def restore(self, model: str, state: Mapping[str, torch.Tensor], updates: int) -> None:
        """Make an adapter of what `snapshot` returned of one, or let a model continue from that."""
        with self._parking.making(model):
            self._worker.backend.restore(state, updates)
            self._worker.backend.optimizer.zero_grad()

    def forget(self, model: str) -> None:
        """Give back the memory of a model."""
        self._parking.forget(model)

    def accumulate(self, model: str, request: UpdateRequest, *, with_gradient: bool) -> Accumulated:
        """Add the gradient of the samples' loss to those of the model before."""
        self._parking.bring(model)
        return self._worker.accumulate(request, with_gradient=with_gradient)

    def forget_gradient(self, model: str) -> None:
        """Forget the gradients since the model's last step."""
        self._parking.bring(model)
        self._worker.backend.optimizer.zero_grad()

    def step(self, model: str, numbers: AdamW) -> float:
        """Update a model by its gradients and forget them; return their norm. If it is not finite, nothing changes."""
        self._parking.bring(model)
        return self._worker.backend.optim_step(numbers)

    def snapshot(self, model: str) -> Snapshot:
        """Return all of a model's state, before the next call of another method."""
        self._parking.bring(model)
        return self._worker.backend.snapshot()

    def keep(self, snapshot: str, model: str) -> None:
        """Keep the model's present adapter to sample from."""
        self._parking.bring(model)
        adapter = self._worker.backend.model.export()
        self.add(snapshot, {name: tensor.detach().to("cpu", copy=True) for name, tensor in adapter.items()})

    def add(self, snapshot: str, adapter: dict[str, torch.Tensor]) -> None:
        """Keep an adapter in Hugging Face names, of the worker's rank, to sample from."""
        self.drop(snapshot)
        self._snapshots[snapshot], self._versions[snapshot] = adapter, next(_VERSIONS)

    def drop(self, snapshot: str) -> None:
        """Give back the memory of a snapshot."""
        for of in (self._snapshots, self._versions, self._served):
            of.pop(snapshot, None)

    def has(self, snapshot: str) -> bool:
        """Whether the snapshot is in memory."""
        return snapshot == BASE or snapshot in self._snapshots

    @property
    def generating(self) -> set[str]:
        """The snapshots whose completions are being made."""
        versions = self._engine.engine.generating
        return {snapshot for snapshot in self._served if self._versions[snapshot] in versions}

    def ask(self, snapshot: str, wanted: Sequence[Wanted]) -> None:
        """Ask for completions by a snapshot, which `generate` makes.

        Raises:
            StaleAdapterError: the engine did not get the adapter, or all its slots are in use. Nothing is asked then.
        """
        self._serve(snapshot)
        numbered = {next(self._numbers): one for one in wanted}
        version = self._versions[snapshot]
        self._worker.submit({number: replace(one.request, adapter=version) for number, one in numbered.items()})
        self._asked |= {number: (version, one.made) for number, one in numbered.items()}

    def generate(self, between: Callable[[], None]) -> None:
        """Make what was asked for, and what `between` asks for: it is called between steps, now and then or at once.

        Raises:
            StaleAdapterError: the engine has other adapters. Nothing that they made is handed over.
        """
        try:
            while self._asked:
                for chunk in self._worker.results(next(self._numbers)):
                    for number, completion in zip(chunk.numbers, chunk.completions, strict=True):
                        if asked := self._asked.pop(number, None):  # None: one of a generation that failed
                            version, made = asked
                            require_version([completion], version)
                            made(completion)
                    between()
        finally:
            self._asked.clear()

    def hurry(self) -> None:
        """Let `between` be called after the next step. Any thread may."""
        self._engine.engine.hurry()

    def prompt_logprobs(self, snapshot: str, tokens: Sequence[int]) -> np.ndarray:
        """Return the log-probability of each token of a prompt but the first, at temperature 1."""
        if len(tokens) < 2:
            return np.empty(0, np.float32)
        with self._held(snapshot):
            [found] = self._worker.log_probabilities(Samples([prompt_sample(tokens)]), 1.0)
        logprobs: np.ndarray = found
        return logprobs

    def _serve(self, snapshot: str) -> None:
        """Let the engine have a snapshot, in the place of the one that was not used for longest if there is no room."""
        if (slot := self._served.pop(snapshot, None)) is None:
            slot = self._room()
            with self._held(snapshot):
                self._worker.sync(self._versions[snapshot], slot=slot)
        self._served[snapshot] = slot

    def _room(self) -> int:
        """Return a slot that no request uses: an empty one, or that of the snapshot that was not used for longest."""
        held, generating = list(self._served.values()), self._engine.engine.generating
        unused = [place for place, slot in enumerate(self._engine.engine.slots) if slot.version not in generating]
        if not unused:
            raise StaleAdapterError(f"all {self.slots} adapters in the engine are generating; sample again")
        found = min(unused, key=lambda place: held.index(place) if place in held else -1)
        self._served = {snapshot: place for snapshot, place in self._served.items() if place != found}
        return found

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
