"""The requests that generate at a time, one row of arrays each: what a decode step needs to know and to keep, without a loop over them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Ended:
    """A request's end: its completion, and whether it ended with a stop token (otherwise with the last that it may have)."""

    name: str
    tokens: Rows
    logprobs: NDArray[np.float32]
    stopped: bool


class RunningRequests:
    """A row is a seat. A request takes a free one when it is admitted, and leaves it when it ends.

    Steps overlap: the next one is asked for before the answer of the one before is there. So what was asked and what has arrived
    are counted apart, and answers come with the request's name, as its seat may have been given to another meanwhile.
    """

    def __init__(self, count: int, longest: int) -> None:
        """`count` requests at a time of `longest` tokens each, prompt and completion together."""
        self.names = [""] * count
        self.prompt = np.zeros(count, np.int64)  # tokens
        self.asked = np.zeros(count, np.int64)  # tokens whose keys and values are computed, or asked for
        self.end = np.zeros(
            count, np.int64
        )  # `asked` when the last token is asked for: that one is never computed itself
        self.taken: Rows = np.empty(0, np.int64)  # in the order of admission
        self._seats: dict[str, int] = {}
        self._free = list(range(count))[::-1]
        self._stops = np.full((count, 0), -1)
        self._arrived = np.zeros(count, np.int64)
        # Memory that nothing is written to takes none.
        self._tokens = np.empty((count, longest), np.int64)
        self._logprobs = np.empty((count, longest), np.float32)

    @property
    def free(self) -> int:
        """How many seats nobody has."""
        return len(self._free)

    def take(self, name: str, prompt: int, known: int, limit: int, stops: Collection[int]) -> int:
        """Seat a request and return its seat.

        `prompt`, `known` and `limit` are tokens: of the prompt, those of it that are computed already, and of the longest completion.
        """
        seat = self._free.pop()
        self.names[seat], self._seats[name] = name, seat
        self.prompt[seat], self.asked[seat], self.end[seat], self._arrived[seat] = prompt, known, prompt + limit - 1, 0
        if (missing := len(stops) - self._stops.shape[1]) > 0:
            self._stops = np.pad(self._stops, ((0, 0), (0, missing)), constant_values=-1)
        self._stops[seat] = -1
        self._stops[seat, : len(stops)] = list(stops)
        self.taken = np.append(self.taken, seat)
        return seat

    def decoding(self) -> Rows:
        """Return the seats that get their next token in a step of one token each."""
        asked = self.asked[self.taken]
        return self.taken[(asked >= self.prompt[self.taken]) & (asked < self.end[self.taken])]

    def prefilling(self) -> Rows:
        """Return the seats of which a part of the prompt is still to be computed."""
        return self.taken[self.asked[self.taken] < self.prompt[self.taken]]

    def receive(self, names: list[str], tokens: Rows, logprobs: NDArray[np.float32] | None) -> list[Ended]:
        """Keep a step's answer, and return the requests that end with it; their seats are free.

        `tokens` and `logprobs` are one a name; -1 is no token: a part of the prompt was computed. Of requests that ended they are dropped.
        """
        seats = np.fromiter((self._seats.get(name, -1) for name in names), np.int64, len(names))
        valid = np.flatnonzero((seats >= 0) & (tokens >= 0))
        seats, tokens = seats[valid], tokens[valid]
        place = self._arrived[seats]
        self._tokens[seats, place] = tokens
        self._logprobs[seats, place] = np.nan if logprobs is None else logprobs[valid]
        self._arrived[seats] = place + 1
        stopped = (tokens[:, None] == self._stops[seats]).any(axis=1)
        last = self.prompt[seats] + place == self.end[seats]
        ended = np.flatnonzero(stopped | last)
        return [self._leave(int(seats[row]), bool(stopped[row])) for row in ended]

    def _leave(self, seat: int, stopped: bool) -> Ended:
        name, length = self.names[seat], int(self._arrived[seat])
        del self._seats[name]
        self._free.append(seat)
        self.taken = self.taken[self.taken != seat]
        return Ended(name, self._tokens[seat, :length].copy(), self._logprobs[seat, :length].copy(), stopped)
