"""What a rollout's scheduler knows of its requests, with answers that come a step late."""

from __future__ import annotations

import numpy as np

from lorarl_trainer.engine.vllm.running import Ended, RunningRequests


def ask(seats: RunningRequests) -> list[str]:
    """Ask for one more token of each that decodes."""
    decoding = seats.decoding()
    seats.asked[decoding] += 1
    return [seats.names[seat] for seat in decoding]


def answer(seats: RunningRequests, names: list[str], *tokens: int) -> list[Ended]:
    return seats.receive(names, np.array(tokens), np.array(tokens, np.float32) / 8)


def test_a_request_ends_with_its_last_token_or_with_a_stop_token() -> None:
    seats = RunningRequests(4, 16)
    for name, limit, stops in (("a", 2, (9,)), ("b", 3, (8, 9)), ("c", 3, ())):
        seats.take(name, 5, 5, limit, stops)
    assert ask(seats) == ["a", "b", "c"] and answer(seats, ["a", "b", "c"], 1, 2, 8) == []
    assert ask(seats) == ["b", "c"], "a's two tokens are asked for already: the prompt's last token gave the first"
    ended = answer(seats, ["c", "a", "b"], 9, 7, 8)
    assert [(e.name, e.tokens.tolist(), e.stopped) for e in ended] == [("a", [1, 7], False), ("b", [2, 8], True)]
    assert ended[0].logprobs.tolist() == [1 / 8, 7 / 8]
    assert ask(seats) == [] and [e.tokens.tolist() for e in answer(seats, ["c"], 3)] == [[8, 9, 3]]
    assert seats.free == 4


def test_an_answer_that_comes_after_the_end_is_not_the_next_ones() -> None:
    seats = RunningRequests(1, 16)
    first = seats.take("a", 3, 3, 4, (9,))
    late = ask(seats)  # the first answer is not there yet
    assert [e.stopped for e in answer(seats, ["a"], 9)] == [True]
    assert seats.take("b", 3, 3, 1, ()) == first
    assert answer(seats, late, 5) == []
    (ended,) = answer(seats, ["b"], 6)
    assert (ended.name, ended.tokens.tolist()) == ("b", [6])


def test_a_part_of_a_prompt_gives_no_token() -> None:
    seats = RunningRequests(2, 16)
    seat = seats.take("a", prompt=6, known=2, limit=2, stops=())
    assert seats.prefilling().tolist() == [seat] and not len(seats.decoding())
    seats.asked[seat] += 3
    assert answer(seats, ["a"], -1) == []
    seats.asked[seat] += 1
    assert not len(seats.prefilling()) and ask(seats) == ["a"] and ask(seats) == []
    assert answer(seats, ["a"], 4) == []
    (ended,) = answer(seats, ["a"], 5)
    assert ended.tokens.tolist() == [4, 5]


def test_what_ended_keeps_its_tokens_when_the_seat_is_used_again() -> None:
    seats = RunningRequests(1, 8)
    seats.take("a", 1, 1, 1, ())
    (first,) = seats.receive(["a"], np.array([1]), None)
    seats.take("b", 1, 1, 1, (3,))
    (second,) = seats.receive(["b"], np.array([2]), np.array([0.5], np.float32))
    assert (first.tokens.tolist(), second.tokens.tolist(), second.stopped) == ([1], [2], False)
    assert np.isnan(first.logprobs).all() and second.logprobs.tolist() == [0.5]
