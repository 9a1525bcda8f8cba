"""What the one trainer and the one engine do next, for many clients. Pure: no thread, no clock.

A training request of a model comes after those with smaller numbers. What has waited longest is next; sampling requests
are made together, of as many snapshots as the engine has at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from lorarl_trainer.tinker.refusals import RefusedError


@dataclass(frozen=True)
class Turn[Work]:
    """What is done next: one training request, or sampling requests."""

    works: Sequence[Work]
    samples: bool = False


@dataclass
class Schedule[Work]:
    """The requests that wait, by the numbers of their arrival."""

    _arrived: int = 0
    _next: dict[str, int] = field(default_factory=dict)
    _training: dict[str, dict[int, tuple[int, Work]]] = field(default_factory=dict)
    _sampling: list[tuple[int, str, Work]] = field(default_factory=list)

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
        self._sampling.append((self._count(), snapshot, work))

    def next(self, slots: int) -> Turn[Work] | None:
        """Return what has waited longest, of what may be made; None if there is nothing. It is not here any more.

        `slots`: snapshots that are sampled from at a time.
        """
        trains = self._oldest_training()
        if self._sampling and (trains is None or self._sampling[0][0] < trains[0]):
            snapshots = dict.fromkeys(snapshot for _, snapshot, _ in self._sampling)
            together = set(list(snapshots)[:slots])
            taken = [one for one in self._sampling if one[1] in together]
            self._sampling = [one for one in self._sampling if one[1] not in together]
            return Turn([work for _, _, work in taken], samples=True)
        if trains is None:
            return None
        model = trains[1]
        self._next[model] += 1
        return Turn([self._training[model].pop(self._next[model] - 1)[1]])

    def join(self, generating: Collection[str], slots: int) -> list[Work]:
        """Return the sampling requests that may join those that are being made. They are not here any more.

        None joins while a training request waits. They join in their order, as long as their snapshots have room beside
        those that are `generating`: so none waits forever.
        """
        if self._oldest_training() is not None:
            return []
        together, joins = set(generating), list[Work]()
        for _, snapshot, work in self._sampling:
            together.add(snapshot)
            if len(together) > slots:
                break
            joins.append(work)
        del self._sampling[: len(joins)]
        return joins

    @property
    def idle(self) -> bool:
        """Whether nothing waits that may be made."""
        return self._oldest_training() is None and not self._sampling

    def _oldest_training(self) -> tuple[int, str] | None:
        """Return number and model of the training request that has waited longest, of those that may be made."""
        heads = {model: self._training[model].get(number) for model, number in self._next.items()}
        return min(((head[0], model) for model, head in heads.items() if head), default=None)

    def _count(self) -> int:
        self._arrived += 1
        return self._arrived
