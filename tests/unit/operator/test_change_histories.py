"""Random histories of a job that its user changes, too: its machines, and the queue that it waits in."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unit.operator.test_world import MOVES, STORIES, Life, ended_well, held_by_its_queue, move

QUEUE = "kueue.x-k8s.io/queue-name"
IDLE = ("Pending", "Restarting", "Suspended")
"""The phases in which the API server lets the machines change."""
CHANGES = ("machines", "label", "priority")
STEPS = st.sampled_from([*([one] for one in MOVES), *STORIES * 3, *([one] for one in CHANGES * 8)])


class ChangedLife(Life):
    """A world whose user changes what reaches an attempt with its RayJob alone."""

    def change(self, what: str, rng: random.Random) -> None:
        if self.job is None:
            return
        labels = self.job["metadata"]["labels"]
        match what:
            case "machines" if self.phase in IDLE:
                self.touch(spec={"cluster": {"cpusPerNode": str(rng.randrange(1, 5))}})
            case "label":
                queue = rng.choice(["research", "shared", None])
                self.job["metadata"]["labels"] = labels | {QUEUE: queue} if queue else without(labels)
                self.touch()
            case "priority":
                self.job["metadata"]["labels"] = labels | {"kueue.x-k8s.io/priority-class": rng.choice(["low", "high"])}
                self.touch()


def without(labels: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key != QUEUE}


def asks_as_the_job_does(world: ChangedLife) -> None:
    """An attempt that waits in a queue is in the one that the job names, and has its other labels too."""
    world.settle()
    ray_job = world.current
    if ray_job is None or world.phase not in ("Pending", "Starting") or world.reason == "QueueStopped":
        return
    if ray_job["spec"]["suspend"] and not world.job["spec"].get("suspend"):
        for key in (QUEUE, "kueue.x-k8s.io/priority-class"):
            assert ray_job["metadata"]["labels"].get(key) == world.job["metadata"]["labels"].get(key)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts=st.lists(STEPS, min_size=10, max_size=60),
    seed=st.integers(0, 2**16),
    queued=st.booleans(),
    recovers=st.booleans(),
)
def test_a_change_of_machines_or_queue_costs_no_attempt_and_lifts_no_stop(parts, seed, queued, recovers):
    rng = random.Random(seed)
    world = ChangedLife(
        {"backoffLimit": 1000, "maxPreemptionsWithoutProgress": 1000},
        {QUEUE: "research"} if queued else None,
        recovers=recovers,
    )
    for name in (name for part in parts for name in part):
        before = world.counters()
        if name in CHANGES:
            world.change(name, rng)
        else:
            move(world, name, rng)
        after = world.counters()
        assert sum(after) - sum(before) <= 1, f"{name} counted twice: {before} became {after}"
        if name == "look":
            held_by_its_queue(world)
            asks_as_the_job_does(world)
    ended_well(world)
    attempts, preemptions = world.counters()
    assert preemptions <= len(world.lost)
    assert len(world.plain_failures) <= attempts <= len(world.failures)
