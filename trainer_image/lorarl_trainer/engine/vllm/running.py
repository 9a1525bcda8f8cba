"""The requests that generate at a time, one row of arrays each, so that a decode step needs no loop over them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from lorarl_trainer.engine.vllm.stop_strings import StopStrings
from lorarl_trainer.samples.arrays import Floats, Ints


@dataclass(frozen=True)
class Ended:
    """A request that has ended.

    Attributes:
        tokens: its completion, [T].
        logprobs: [T]; NaN for a greedy completion.
        kept: [T]; how many tokens were possible in the place of each, if the sampling truncates.
        stopped: it ended with a stop token or text, and not because it reached its longest length.
    """

    name: str
    tokens: Ints
    logprobs: Floats
    kept: Ints
    stopped: bool


class RunningRequests:
    """A table with a row per request, which the request keeps until it ends, also while it is paused.

    Steps overlap: the next step is requested before the answer to the one before has arrived. So the tokens that were
    requested and the tokens that have arrived are counted separately. Answers come with the request's name, because its
    row may have been given to another request in the meantime.

    Lengths count from the prompt's first token.

    Attributes:
        names: of the requests, by row.
        prompt: tokens of each prompt.
        prefill: tokens that were known when the request began to run: its prompt, and what it made before a pause.
        requested: tokens whose keys and values are computed, or requested.
        room: tokens that its blocks of the KV cache can hold.
        end: `requested` when the last token has been requested. The last token itself is never computed.
        adapter: the version of each request's adapter, which the scheduler notes.
        rows: the rows that run, in the order of admission.
        stop_strings: texts that end a completion; None if there are none.
    """

    def __init__(self, count: int, longest: int) -> None:
        """Make room for `count` requests of `longest` tokens each, prompt and completion together."""
        self.names = np.full(count, "", object)
        self.prompt = np.zeros(count, np.int64)
        self.prefill = np.zeros(count, np.int64)
        self.requested = np.zeros(count, np.int64)
        self.room = np.zeros(count, np.int64)
        self.end = np.zeros(count, np.int64)
        self.adapter = np.zeros(count, np.int64)
        self.rows: Ints = np.empty(0, np.int64)
        self._row_of: dict[str, int] = {}
        self._last: tuple[list[str], Ints] | None = None  # the names of an answer and their rows, while none changes
        self._free = list(range(count))[::-1]
        self._stops = np.full((count, 0), -1)
        self._arrived = np.zeros(count, np.int64)
        # Memory that is never written to takes no space.
        self._tokens = np.empty((count, longest), np.int64)
        self._logprobs = np.empty((count, longest), np.float32)
        self._kept = np.empty((count, longest), np.int64)
        self.stop_strings: StopStrings | None = None

    @property
    def free_rows(self) -> int:
        """How many more requests can be admitted."""
        return len(self._free)

    def row_of(self, name: str) -> int | None:
        """Return a request's row, if it has one."""
        return self._row_of.get(name)

    def made(self, row: int) -> Ints:
        """Return the tokens of the completion that have arrived so far."""
        return self._tokens[row, : self._arrived[row]]

    def answered(self, row: int) -> bool:
        """Return whether every token that was requested has arrived."""
        sampled = self.requested[row] - self.prompt[row] + 1 if self.requested[row] >= self.prefill[row] else 0
        return bool(sampled <= self._arrived[row])

    def admit(self, name: str, prompt: int, limit: int, stops: Collection[int]) -> int:
        """Give a request a row and return it. It runs from `start` on."""
        row = self._free.pop()
        self.names[row], self._row_of[name], self._last = name, row, None
        self.prompt[row], self.end[row], self._arrived[row] = prompt, prompt + limit - 1, 0
        if (missing := len(stops) - self._stops.shape[1]) > 0:
            self._stops = np.pad(self._stops, ((0, 0), (0, missing)), constant_values=-1)
        self._stops[row] = -1
        self._stops[row, : len(stops)] = list(stops)
        return row

    def start(self, row: int, known: int, room: int) -> None:
        """Let a request run.

        `room`: how many its blocks can hold: its prompt and what it has made, or more.
        """
        self.prefill[row], self.requested[row] = self.prompt[row] + self._arrived[row], known
        self.room[row] = room
        self.rows = np.append(self.rows, row)

    def pause(self, row: int) -> None:
        """Let a request stop running. It keeps its row, and answers that are still under way may arrive."""
        self.rows = self.rows[self.rows != row]

    def decoding(self) -> Ints:
        """Return the rows that get their next token in a step of one token each."""
        requested = self.requested[self.rows]
        return self.rows[(requested >= self.prefill[self.rows]) & (requested < self.end[self.rows])]

    def prefilling(self) -> Ints:
        """Return the rows with a part of their known tokens still to be computed."""
        return self.rows[self.requested[self.rows] < self.prefill[self.rows]]

    def full(self, rows: Ints) -> Ints:
        """Return the places in `rows` of requests whose blocks have no room for the next token."""
        return np.flatnonzero(self.requested[rows] == self.room[rows])

    def receive(self, names: list[str], tokens: Ints, logprobs: Floats | None, kept: Ints | None = None) -> list[Ended]:
        """Keep a step's answer; return the requests that end with it and free their rows.

        Args:
            names: of the requests that were in the step.
            tokens: one per name; -1 is no token, because only a part of the known tokens was computed. The tokens of
                requests that have already ended are dropped.
            logprobs: one per name; None for greedy completions.
            kept: one per name: how many tokens were possible; None for greedy completions.
        """
        rows = self._rows_of(names)
        valid = np.flatnonzero((rows >= 0) & (tokens >= 0))
        rows, tokens = rows[valid], tokens[valid]
        column = self._arrived[rows]
        self._tokens[rows, column] = tokens
        self._logprobs[rows, column] = np.nan if logprobs is None else logprobs[valid]
        self._kept[rows, column] = 0 if kept is None else kept[valid]
        self._arrived[rows] = column + 1
        stopped = (tokens[:, None] == self._stops[rows]).any(axis=1)
        if self.stop_strings is not None and len(rows):
            first = np.maximum(column + 1 - self.stop_strings.window, 0)
            parts = zip(rows.tolist(), first.tolist(), (column + 1).tolist(), strict=True)
            stopped |= self.stop_strings.found([self._tokens[row, begin:end] for row, begin, end in parts])
        last = self.prompt[rows] + column == self.end[rows]
        ended = np.flatnonzero(stopped | last)
        return [self._release(int(rows[index]), bool(stopped[index])) for index in ended]

    def _rows_of(self, names: list[str]) -> Ints:
        """Return the requests' rows; -1 is a request that has ended. Most steps have the requests of the one before."""
        if self._last is None or self._last[0] != names:
            self._last = names, np.fromiter(map(self._row_of.get, names, repeat(-1)), np.int64, len(names))
        return self._last[1]

    def _release(self, row: int, stopped: bool) -> Ended:
        name, length = self.names[row], int(self._arrived[row])
        del self._row_of[name]
        self._last = None
        self._free.append(row)
        self.pause(row)
        tokens, logprobs, kept = self._tokens[row], self._logprobs[row], self._kept[row]
        return Ended(name, tokens[:length].copy(), logprobs[:length].copy(), kept[:length].copy(), stopped)
