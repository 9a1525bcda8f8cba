"""What a rollout's scheduler knows of its requests, with answers that come a step late."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from lorarl_trainer.engine.vllm.running import Ended, RunningRequests


def begin(
    table: RunningRequests, name: str, prompt: int, limit: int, stops: Collection[int] = (), known: int | None = None
) -> int:
    """Let a request run whose prompt is computed, or as much of it as `known` says."""
    row = table.admit(name, prompt, limit, stops)
    table.start(row, prompt if known is None else known, room=16)
    return row


def ask(table: RunningRequests) -> list[str]:
    """Ask for one more token of each that decodes."""
    decoding = table.decoding()
    table.requested[decoding] += 1
    return [table.names[row] for row in decoding]


def answer(table: RunningRequests, names: list[str], *tokens: int) -> list[Ended]:
    return table.receive(names, np.array(tokens), np.array(tokens, np.float32) / 8, np.array(tokens) * 2)


def test_a_request_ends_with_its_last_token_or_with_a_stop_token() -> None:
    table = RunningRequests(4, 16)
    for name, limit, stops in (("a", 2, (9,)), ("b", 3, (8, 9)), ("c", 3, ())):
        begin(table, name, 5, limit, stops)
    assert ask(table) == ["a", "b", "c"] and answer(table, ["a", "b", "c"], 1, 2, 8) == []
    assert ask(table) == ["b", "c"], "a's two tokens are asked for already: the prompt's last token gave the first"
    ended = answer(table, ["c", "a", "b"], 9, 7, 8)
    assert [(e.name, e.tokens.tolist(), e.stopped) for e in ended] == [("a", [1, 7], False), ("b", [2, 8], True)]
    assert ended[0].logprobs.tolist() == [1 / 8, 7 / 8]
    assert ask(table) == [] and [e.tokens.tolist() for e in answer(table, ["c"], 3)] == [[8, 9, 3]]
    assert table.free_rows == 4


def test_an_answer_that_comes_after_the_end_is_not_the_next_ones() -> None:
    table = RunningRequests(1, 16)
    first = begin(table, "a", 3, 4, (9,))
    late = ask(table)  # the first answer is not there yet
    assert [e.stopped for e in answer(table, ["a"], 9)] == [True]
    assert begin(table, "b", 3, 1) == first
    assert answer(table, late, 5) == []
    (ended,) = answer(table, ["b"], 6)
    assert (ended.name, ended.tokens.tolist()) == ("b", [6])


def test_a_part_of_a_prompt_gives_no_token() -> None:
    table = RunningRequests(2, 16)
    row = begin(table, "a", prompt=6, limit=2, known=2)
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
    begin(table, "a", 1, 1)
    (first,) = table.receive(["a"], np.array([1]), None)
    begin(table, "b", 1, 1, (3,))
    (second,) = table.receive(["b"], np.array([2]), np.array([0.5], np.float32))
    assert (first.tokens.tolist(), second.tokens.tolist(), second.stopped) == ([1], [2], False)
    assert np.isnan(first.logprobs).all() and second.logprobs.tolist() == [0.5]


def test_rows_whose_blocks_are_full_are_found_by_their_places() -> None:
    table = RunningRequests(3, 40)
    for name, prompt in (("a", 15), ("b", 16), ("c", 3)):
        begin(table, name, prompt, 20)
    assert table.full(table.decoding()).tolist() == [1]
    table.room[table.decoding()[1]] += 16
    ask(table)
    assert table.full(table.decoding()).tolist() == [0]


def test_a_paused_request_keeps_what_it_made_and_takes_the_answer_under_way() -> None:
    table = RunningRequests(2, 16)
    row = begin(table, "a", 3, 4)
    begin(table, "b", 3, 4)
    ask(table)
    answer(table, ["a", "b"], 5, 6)
    table.pause(row)
    assert ask(table) == ["b"] and not table.answered(row)
    answer(table, ["a", "b"], 7, 8)
    assert table.answered(row) and table.made(row).tolist() == [5, 7] and table.row_of("a") == row
    table.start(row, known=0, room=16)
    assert table.prefilling().tolist() == [row] and ask(table) == ["b"]
    table.requested[row] += 5  # the prompt and what was made: the last of it gives the next token
    assert answer(table, ["b", "a"], 9, 1) == [] and ask(table) == ["a"]
    ended = answer(table, ["b", "a"], 2, 3)
    assert {e.name: e.tokens.tolist() for e in ended} == {"a": [5, 7, 1, 3], "b": [6, 8, 9, 2]}
    (kept,) = [e.kept.tolist() for e in ended if e.name == "a"]
    assert kept == [10, 14, 2, 6]


def test_a_paused_request_may_end_with_the_answer_under_way() -> None:
    table = RunningRequests(1, 16)
    table.pause(begin(table, "a", 3, 4, (9,)))
    assert [e.tokens.tolist() for e in answer(table, ["a"], 9)] == [[9]]
    assert table.free_rows == 1 and table.row_of("a") is None
