"""What is next: in order for each model, and sampled from together as far as the engine has slots."""

from __future__ import annotations

import random

import pytest

from lorarl_trainer.tinker.refusals import RefusedError
from lorarl_trainer.tinker.schedule import Schedule, Turn


def test_a_model_waits_for_the_request_that_comes_before() -> None:
    schedule = Schedule[str]()
    schedule.begin("m", 0)
    schedule.train("m", 1, "step")
    assert schedule.next(1) is None and schedule.idle
    schedule.train("m", 0, "create")
    assert [turn.works for turn in (schedule.next(1), schedule.next(1)) if turn] == [["create"], ["step"]]
    with pytest.raises(RefusedError, match="seq_id 1 of m was used; the next one is 2"):
        schedule.train("m", 1, "again")


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        (1, [(True, ["a1", "a2"]), (False, ["m0"]), (True, ["b1"]), (True, ["c1"])]),
        (2, [(True, ["a1", "b1", "a2"]), (False, ["m0"]), (True, ["c1"])]),
        (3, [(True, ["a1", "b1", "c1", "a2"]), (False, ["m0"])]),
    ],
)
def test_snapshots_are_sampled_from_together_as_far_as_there_are_slots(
    slots: int, expected: list[tuple[bool, list[str]]]
) -> None:
    schedule = Schedule[str]()
    schedule.begin("m", 0)
    schedule.sample("a", "a1")
    schedule.train("m", None, "m0")
    for work in ("b1", "c1", "a2"):
        schedule.sample(work[0], work)
    turns = [turn for _ in range(5) if (turn := schedule.next(slots))]
    assert [(turn.samples, turn.works) for turn in turns] == expected and schedule.idle


def test_requests_join_in_their_order_until_one_has_no_room() -> None:
    schedule = Schedule[str]()
    schedule.begin("m", 0)
    for work in ("b1", "c1", "a2", "b2"):
        schedule.sample(work[0], work)
    assert schedule.join({"a"}, slots=2) == ["b1"]
    assert schedule.join({"a", "b"}, slots=2) == [], "a and b would be made forever, and c never"
    schedule.train("m", 0, "m0")
    assert schedule.join({"b"}, slots=2) == [], "and m, too"
    assert [schedule.next(1), schedule.next(2)] == [Turn(["c1"], samples=True), Turn(["a2", "b2"], samples=True)]


def test_random_histories_lose_nothing_keep_the_order_and_exceed_no_slots() -> None:
    for seed in range(200):
        draw, schedule = random.Random(seed), Schedule[tuple[str, int]]()
        wanted = {model: draw.sample(range(8), 8) for model in ("x", "y", "z")}
        made: dict[str, list[int]] = {model: [] for model in wanted}
        sampled = asked = 0
        slots = draw.randint(1, 3)
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
            elif (turn := schedule.next(slots)) is not None and turn.samples:
                together = {work[0] for work in turn.works}
                joined = schedule.join(together, slots)
                assert len(together.union(work[0] for work in joined)) <= slots
                sampled += len(turn.works) + len(joined)
            elif turn is not None:
                [(model, number)] = turn.works
                made[model].append(number)
        assert made == {model: list(range(8)) for model in wanted} and sampled == asked


def test_a_model_that_ends_gives_its_requests_back() -> None:
    schedule = Schedule[str]()
    schedule.begin("m", 0)
    schedule.train("m", 3, "later")
    assert schedule.end("m") == ["later"] and schedule.next(1) is None
