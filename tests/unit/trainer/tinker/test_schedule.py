"""What is next: in order for each model, and never by another adapter's turn."""

from __future__ import annotations

import random

import pytest

from lorarl_trainer.tinker.refusals import RefusedError
from lorarl_trainer.tinker.schedule import Schedule


def test_a_model_waits_for_the_request_that_comes_before() -> None:
    schedule = Schedule[str]()
    schedule.begin("m", 0)
    schedule.train("m", 1, "step")
    assert schedule.next() is None and schedule.idle
    schedule.train("m", 0, "create")
    assert [turn.works for turn in (schedule.next(), schedule.next()) if turn] == [["create"], ["step"]]
    with pytest.raises(RefusedError, match="seq_id 1 of m was used; the next one is 2"):
        schedule.train("m", 1, "again")


def test_requests_of_one_snapshot_are_made_together_the_oldest_first() -> None:
    schedule = Schedule[str]()
    schedule.begin("m", 0)
    schedule.sample("a", "a1")
    schedule.train("m", None, "m0")
    schedule.sample("b", "b1")
    schedule.sample("a", "a2")
    turns = [turn for _ in range(3) if (turn := schedule.next())]
    assert [(turn.snapshot, turn.works) for turn in turns] == [("a", ["a1", "a2"]), (None, ["m0"]), ("b", ["b1"])]


def test_random_histories_lose_nothing_keep_the_order_and_mix_no_snapshots() -> None:
    for seed in range(200):
        draw, schedule = random.Random(seed), Schedule[tuple[str, int]]()
        wanted = {model: draw.sample(range(8), 8) for model in ("x", "y", "z")}
        made: dict[str, list[int]] = {model: [] for model in wanted}
        sampled = asked = 0
        for model in wanted:
            schedule.begin(model, 0)
        while any(wanted.values()) or asked < 12 or not schedule.idle:
            model = draw.choice(list(wanted))
            if draw.random() < 0.5 and wanted[model]:
                number = wanted[model].pop()
                schedule.train(model, number, (model, number))
            elif draw.random() < 0.5 and asked < 12:
                asked += 1
                schedule.sample(model, (model, asked))
            elif (turn := schedule.next()) is not None and turn.snapshot is not None:
                assert {work[0] for work in turn.works} == {turn.snapshot}
                sampled += len(turn.works)
            elif turn is not None:
                [(model, number)] = turn.works
                made[model].append(number)
        assert made == {model: list(range(8)) for model in wanted} and sampled == asked


def test_a_model_that_ends_gives_its_requests_back() -> None:
    schedule = Schedule[str]()
    schedule.begin("m", 0)
    schedule.train("m", 3, "later")
    assert schedule.end("m") == ["later"] and schedule.next() is None
