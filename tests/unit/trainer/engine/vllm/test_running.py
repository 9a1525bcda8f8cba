"""What a rollout's scheduler knows of its requests, with answers that come a step late."""

from __future__ import annotations

import numpy as np

from lorarl_trainer.engine.vllm.running import Ended, RunningRequests


def ask(table: RunningRequests) -> list[str]:
    """Ask for one more token of each that decodes."""
    decoding = table.decoding()
    table.requested[decoding] += 1
    return [table.names[row] for row in decoding]


def answer(table: RunningRequests, names: list[str], *tokens: int) -> list[Ended]:
    return table.receive(names, np.array(tokens), np.array(tokens, np.float32) / 8)


def test_a_request_ends_with_its_last_token_or_with_a_stop_token() -> None:
    table = RunningRequests(4, 16)
    for name, limit, stops in (("a", 2, (9,)), ("b", 3, (8, 9)), ("c", 3, ())):
        table.admit(name, 5, 5, limit, stops)
    assert ask(table) == ["a", "b", "c"] and answer(table, ["a", "b", "c"], 1, 2, 8) == []
    assert ask(table) == ["b", "c"], "a's two tokens are asked for already: the prompt's last token gave the first"
    ended = answer(table, ["c", "a", "b"], 9, 7, 8)
    assert [(e.name, e.tokens.tolist(), e.stopped) for e in ended] == [("a", [1, 7], False), ("b", [2, 8], True)]
    assert ended[0].logprobs.tolist() == [1 / 8, 7 / 8]
    assert ask(table) == [] and [e.tokens.tolist() for e in answer(table, ["c"], 3)] == [[8, 9, 3]]
    assert table.free_rows == 4


def test_an_answer_that_comes_after_the_end_is_not_the_next_ones() -> None:
    table = RunningRequests(1, 16)
    first = table.admit("a", 3, 3, 4, (9,))
    late = ask(table)  # the first answer is not there yet
    assert [e.stopped for e in answer(table, ["a"], 9)] == [True]
    assert table.admit("b", 3, 3, 1, ()) == first
    assert answer(table, late, 5) == []
    (ended,) = answer(table, ["b"], 6)
    assert (ended.name, ended.tokens.tolist()) == ("b", [6])


def test_a_part_of_a_prompt_gives_no_token() -> None:
    table = RunningRequests(2, 16)
    row = table.admit("a", prompt=6, known=2, limit=2, stops=())
    assert table.prefilling().tolist() == [row] and not len(table.decoding())
    table.requested[row] += 3
    assert answer(table, ["a"], -1) == []
    table.requested[row] += 1
    assert not len(table.prefilling()) and ask(table) == ["a"] and ask(table) == []
    assert answer(table, ["a"], 4) == []
    (ended,) = answer(table, ["a"], 5)
    assert ended.tokens.tolist() == [4, 5]


def test_what_ended_keeps_its_tokens_when_its_row_is_used_again() -> None:
    table = RunningRequests(1, 8)
    table.admit("a", 1, 1, 1, ())
    (first,) = table.receive(["a"], np.array([1]), None)
    table.admit("b", 1, 1, 1, (3,))
    (second,) = table.receive(["b"], np.array([2]), np.array([0.5], np.float32))
    assert (first.tokens.tolist(), second.tokens.tolist(), second.stopped) == ([1], [2], False)
    assert np.isnan(first.logprobs).all() and second.logprobs.tolist() == [0.5]
