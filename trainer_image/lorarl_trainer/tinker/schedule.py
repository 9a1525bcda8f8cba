"""What the one trainer and the one engine do next, for many clients. Pure: no thread, no clock.

A training request of a model comes after those with smaller numbers. What has waited longest is next; the sampling
requests of one snapshot are made together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lorarl_trainer.tinker.refusals import RefusedError


@dataclass(frozen=True)
class Turn[Work]:
    """What is done next: one training request, or sampling requests of one `snapshot`."""

    works: Sequence[Work]
    snapshot: str | None = None


@dataclass
class Schedule[Work]:
    """The requests that wait, by the numbers of their arrival."""

    _arrived: int = 0
    _next: dict[str, int] = field(default_factory=dict)
    _training: dict[str, dict[int, tuple[int, Work]]] = field(default_factory=dict)
    _sampling: dict[str, list[tuple[int, Work]]] = field(default_factory=dict)

    def begin(self, model: str, number: int) -> None:
        """Take training requests of a model, from this number on."""
        self._next[model], self._training[model] = number, {}

    def end(self, model: str) -> list[Work]:
        """Forget a model; return its requests, which will not be made."""
        del self._next[model]
        return [work for _, work in self._training.pop(model).values()]

    def train(self, model: str, number: int | None, work: Work) -> None:
        """Add a training request of a model. Without a number, it is the next one.

        Raises:
            RefusedError: its number was used.
        """
        waiting = self._training[model]
        if number is None:
            number = max(waiting, default=self._next[model] - 1) + 1
        if number < self._next[model] or number in waiting:
            raise RefusedError(f"seq_id {number} of {model} was used; the next one is {self._next[model]}")
        waiting[number] = self._count(), work

    def sample(self, snapshot: str, work: Work) -> None:
        """Add a sampling request."""
        self._sampling.setdefault(snapshot, []).append((self._count(), work))

    def next(self) -> Turn[Work] | None:
        """Return what has waited longest, of what may be made; None if there is nothing. It is not here any more."""
        heads = {model: self._training[model].get(number) for model, number in self._next.items()}
        trains = min(((head[0], model) for model, head in heads.items() if head), default=None)
        samples = min(((waiting[0][0], snapshot) for snapshot, waiting in self._sampling.items()), default=None)
        if samples is not None and (trains is None or samples < trains):
            return Turn([work for _, work in self._sampling.pop(samples[1])], samples[1])
        if trains is None:
            return None
        model = trains[1]
        self._next[model] += 1
        return Turn([self._training[model].pop(self._next[model] - 1)[1]])

    @property
    def idle(self) -> bool:
        """Whether nothing waits that may be made: then a request may join those of its snapshot that are being made."""
        ready = any(number in self._training[model] for model, number in self._next.items())
        return not ready and not self._sampling

    def _count(self) -> int:
        self._arrived += 1
        return self._arrived
