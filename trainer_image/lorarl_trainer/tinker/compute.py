"""The one thread that trains and generates for all clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion
from lorarl_trainer.tinker.bank import Bank, Wanted
from lorarl_trainer.tinker.promises import Promise, Reply, outcome
from lorarl_trainer.tinker.schedule import Schedule, Turn
from lorarl_trainer.tinker.wire import Sampled, samples_made

if TYPE_CHECKING:
    import torch


@dataclass(eq=False)
class Training:
    """A training request."""

    promise: Promise
    make: Callable[[], Reply]


@dataclass(eq=False)
class Sampling:
    """A sampling request: completions of one prompt, and the log-probabilities of its tokens if these are wanted.

    `snapshot`: what is sampled from.
    """

    promise: Promise
    snapshot: str
    requests: Sequence[GenerationRequest]
    prompt_logprobs: bool = False
    made: dict[int, Completion] = field(default_factory=dict)


class Compute:
    """Takes requests from the server's thread, and makes them in its own."""

    def __init__(self, bank: Bank, read_adapter: Callable[[str], dict[str, torch.Tensor]]) -> None:
        """`read_adapter` returns the adapter of a snapshot that the bank does not have in memory."""
        self._bank, self._read_adapter = bank, read_adapter
        self._schedule = Schedule[Training | Sampling]()
        self._chores: list[Callable[[], None]] = []
        self._stopped = False
        self._changed = threading.Condition()  # guards all of these
        self._making: list[Sampling] = []
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)

    def start(self) -> None:
        """Begin to make requests."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what is being made, and make no more."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def begin(self, model: str) -> None:
        """Take training requests of a model, of which number 0 makes it."""
        with self._changed:
            self._schedule.begin(model, 0)

    def end(self, model: str, snapshots: Sequence[str], reply: Reply) -> None:
        """Forget a model and its snapshots; its requests that wait get this reply."""
        with self._changed:
            for work in self._schedule.end(model):
                work.promise.fulfil(reply)
            self._chores += [partial(self._bank.forget, model), *(partial(self._bank.drop, one) for one in snapshots)]
            self._changed.notify()

    def drop(self, snapshot: str) -> None:
        """Forget a snapshot."""
        with self._changed:
            self._chores.append(partial(self._bank.drop, snapshot))
            self._changed.notify()

    def train(self, model: str, number: int | None, work: Training) -> None:
        """Take a training request of a model. Raises RefusedError if its number was used."""
        with self._changed:
            self._schedule.train(model, number, work)
            self._changed.notify()

    def sample(self, work: Sampling) -> None:
        """Take a sampling request. It joins those that are being made, unless others wait."""
        with self._changed:
            self._schedule.sample(work.snapshot, work)
            self._changed.notify()
        self._bank.hurry()

    def _run(self) -> None:
        while (turn := self._next()) is not None:
            if turn.samples:
                self._generate(turn.works)
                continue
            [work] = turn.works
            assert isinstance(work, Training), "a model has these alone"
            work.promise.fulfil(outcome(work.make))

    def _next(self) -> Turn[Training | Sampling] | None:
        """Wait for what is next; None after `stop`."""
        with self._changed:
            while True:
                for chore in self._chores:
                    chore()
                self._chores.clear()
                if self._stopped:
                    return None
                if (turn := self._schedule.next(self._bank.slots)) is not None:
                    return turn
                self._changed.wait()

    def _generate(self, works: Sequence[Training | Sampling]) -> None:
        """Make sampling requests. If that fails, all of them fail that have no result yet."""

        def make() -> Reply:
            self._ask(works)
            self._bank.generate(self._let_join)
            return Reply(b"")

        failure = outcome(make)
        making, self._making = self._making, []
        for work in making:
            if failure.content:
                work.promise.fulfil(work.promise.reply or failure)
            elif work.prompt_logprobs:
                work.promise.fulfil(outcome(partial(self._with_prompt, work)))

    def _let_join(self) -> None:
        with self._changed:
            joins = () if self._stopped else self._schedule.join(self._bank.generating, self._bank.slots)
        self._ask(joins)

    def _ask(self, works: Sequence[Training | Sampling]) -> None:
        """Ask for the completions of sampling requests. One whose adapter cannot be had fails alone."""
        for work in works:
            assert isinstance(work, Sampling), "a turn has one kind"
            failure = outcome(partial(self._ask_for, work))
            if failure.content:
                work.promise.fulfil(failure)
            else:
                self._making.append(work)

    def _ask_for(self, work: Sampling) -> Reply:
        if not self._bank.has(work.snapshot):
            self._bank.add(work.snapshot, self._read_adapter(work.snapshot))
        self._bank.ask(work.snapshot, self._wanted(work))
        return Reply(b"")

    def _wanted(self, work: Sampling) -> list[Wanted]:
        return [Wanted(request, partial(self._made, work, place)) for place, request in enumerate(work.requests)]

    def _made(self, work: Sampling, place: int, completion: Completion) -> None:
        work.made[place] = completion
        if len(work.made) == len(work.requests) and not work.prompt_logprobs:
            work.promise.fulfil(_reply(work, None))

    def _with_prompt(self, work: Sampling) -> Reply:
        found = self._bank.prompt_logprobs(work.snapshot, work.requests[0].tokens)
        return _reply(work, np.append(np.float32(np.nan), found))


def _reply(work: Sampling, prompt_logprobs: np.ndarray | None) -> Reply:
    made = [work.made[place] for place in range(len(work.requests))]
    return Reply.message(
        samples_made(
            [
                # The best token, which a greedy completion takes, is the only one possible.
                Sampled(
                    one.tokens,
                    one.logprobs if len(one.logprobs) else np.zeros(len(one.tokens), np.float32),
                    one.finished,
                )
                for one in made
            ],
            prompt_logprobs,
        )
    )
