"""On how many machines an elastic job trains: when a wait is over, and when there are machines for more workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.workers import elastic
from lorarl_trainer.workers.elastic import Room, reserve_some
from unit.trainer.planning.jobs import cpu_job

WAIT = 300.0


class Ray:
    """Ray's machines, and a clock that moves by a second with each look."""

    def __init__(self, *there: int) -> None:
        self.there, self.now, self.asked = list(there), 0.0, []

    def machines(self, spec: LoRARLJobSpec) -> int:
        self.now += 1
        return self.there[min(int(self.now // 100), len(self.there) - 1)]

    def reserve(
        self, spec: LoRARLJobSpec, abandoned: threading.Event, gives_up: Callable[[], bool]
    ) -> tuple[int, float] | None:
        self.asked.append(spec.cluster.nodes)
        while self.machines(spec) < spec.cluster.nodes:
            if abandoned.is_set() or gives_up():
                return None
            if self.now > 5000:
                abandoned.set()
        return spec.cluster.nodes, self.now


@pytest.fixture
def with_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ray]]:
    def start(*there: int) -> Ray:
        ray = Ray(*there)
        monkeypatch.setattr(elastic, "reserve", ray.reserve)
        monkeypatch.setattr(elastic, "machines_with_room", ray.machines)
        monkeypatch.setattr(elastic.time, "monotonic", lambda: ray.now)
        return ray

    yield start


def found(fewest: int, most: int, wait: float = WAIT, enough: int | None = None) -> tuple[int, float] | None:
    got = reserve_some(job(fewest, most), wait, threading.Event(), enough)
    if got is None:
        return None
    spec, (nodes, at) = got
    assert spec.cluster.nodes == nodes
    return nodes, at


def job(fewest: int, most: int) -> LoRARLJobSpec:
    return cpu_job(f"cluster.nodes={most}", f"cluster.minNodes={fewest}")


def test_all_machines_are_taken_as_soon_as_they_are_there(with_ray: Callable[..., Ray]) -> None:
    ray = with_ray(1, 2, 4)
    assert (found(1, 4) or (0, 0))[0] == 4 and ray.now < 205
    assert ray.asked == [4]


def test_those_that_are_there_are_taken_when_no_other_came_for_a_while(with_ray: Callable[..., Ray]) -> None:
    ray = with_ray(1, 2, 3, 3)
    nodes, at = found(1, 4) or (0, 0)
    assert nodes == 3
    assert 200 + WAIT <= at < 200 + WAIT + 10, "counted from the last that came"
    assert ray.asked == [4, 3]


def test_as_many_as_are_enough_are_taken_at_once(with_ray: Callable[..., Ray]) -> None:
    ray = with_ray(1, 2)
    assert found(1, 4, enough=2) == (2, ray.now) and ray.now < 105
    with_ray(1, 1)
    nodes, at = found(1, 4, enough=2) or (0, 0)
    assert nodes == 1 and at >= WAIT, "and fewer after the wait"


def test_without_a_wait_those_that_are_there_are_taken(with_ray: Callable[..., Ray]) -> None:
    ray = with_ray(3)
    assert (found(1, 4, wait=0.0) or (0, 0))[0] == 3 and ray.now < 5


def test_machines_that_come_and_go_prolong_no_wait(with_ray: Callable[..., Ray]) -> None:
    with_ray(2, 1, 2, 1, 2, 1, 2, 1)
    nodes, at = found(1, 3) or (0, 0)
    assert nodes in (1, 2) and at < WAIT + 20


def test_fewer_than_the_fewest_are_never_enough(with_ray: Callable[..., Ray]) -> None:
    with_ray(2)
    assert found(3, 4) is None, "until it is abandoned"
    with_ray(2)
    assert found(4, 4) is None


def test_a_machine_that_goes_meanwhile_is_not_waited_for(with_ray: Callable[..., Ray]) -> None:
    """Ray cannot place two workers, so it is asked for all again, and then for the one."""
    ray = with_ray(2, 2, 2, 1)
    assert (found(1, 3) or (0, 0))[0] == 1
    assert ray.asked[0] == 3 and ray.asked[-1] == 1


def test_more_workers_start_when_the_present_ones_have_trained_for_a_while(with_ray: Callable[..., Ray]) -> None:
    ray = with_ray(3)
    room = Room(job(1, 4), job(1, 2), 600.0)
    assert not room.is_more()
    ray.now = 600.0
    assert room.is_more()
    full = Room(job(1, 2), job(1, 2), 0.0)
    assert not full.is_more(), "no more than the job asks for"
    same = Room(job(1, 4), job(1, 3), 0.0)
    assert not same.is_more()
