"""When completions that have ended are handed over."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest

from lorarl_trainer.engine.vllm.batching import CHUNK_SECONDS, in_chunks

STEP_SECONDS = CHUNK_SECONDS / 10


class Engine:
    """Steps of a tenth of what a completion waits at most; `ends`: the step with which each completion ends."""

    def __init__(self, *ends: int) -> None:
        self.ends, self.now = ends, 0

    def steps(self) -> Iterator[Sequence[int]]:
        while self.now <= max(self.ends, default=0):
            self.now += 1
            yield [index for index, end in enumerate(self.ends) if end == self.now]

    def chunks(self, *asked: int) -> list[tuple[int, list[int]]]:
        """Each chunk, with the step after which it came. `asked`: steps after which one is asked for."""
        more, clock = lambda: self.now < max(self.ends), lambda: self.now * STEP_SECONDS
        chunks = in_chunks(self.steps(), more, clock, lambda: self.now in asked)
        return [(self.now, chunk) for chunk in chunks]


@pytest.mark.parametrize(
    "ends",
    [(100, 100, 100), (98, 100, 99), (1, 2, 10), (1,), ()],
    ids=["at once", "nearly at once", "in less time than a chunk waits", "one", "none"],
)
def test_what_ends_together_is_one_chunk_at_the_end(ends: tuple[int, ...]) -> None:
    [(_, chunk)] = Engine(*ends).chunks()
    assert sorted(chunk) == list(range(len(ends)))


def test_what_has_ended_waits_no_longer_than_it_may() -> None:
    """Also where nothing else ends."""
    [(first, early), (_, late)] = Engine(5, 500, 7).chunks()
    assert (early, late) == ([0, 2], [1])
    assert first in (15, 16)


def test_chunks_are_as_far_apart_as_a_completion_waits() -> None:
    chunks = Engine(*range(1, 101)).chunks()
    assert [index for _, chunk in chunks for index in chunk] == list(range(100))
    moments = [moment for moment, _ in chunks[:-1]]
    assert min(b - a for a, b in itertools.pairwise(moments)) >= 10
    assert len(chunks) <= 10


def test_a_chunk_comes_when_it_is_asked_for_whatever_has_ended() -> None:
    assert Engine(3, 9).chunks(2, 4) == [(2, []), (4, [0]), (10, [1])]
