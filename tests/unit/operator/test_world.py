"""Random histories of a job.

Whatever happens, and whenever the operator is killed: at most one RayJob is live, no failure is lost or counted
twice, all requested steps are done, and the job ends.
"""

from __future__ import annotations

import random
from datetime import timedelta

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from unit.operator.observed_world import condition, steps_of
from unit.operator.queue_world import QueueWorld
from unit.operator.world import World

LIMITS = ("MaximumExecutionTimeExceeded", "RequeuingLimitExceeded")
OFTEN = {"look": 8, "killed": 6, "stale": 2, "bring_up": 8, "collect": 6, "wait": 5, "long": 2, "fail": 4, "resume": 3}
MOVES = (
    *(name for name, times in OFTEN.items() for _ in range(times)),
    *("behead",) * 4,
    *("evict",) * 6,
    "someone",
    *("queue",) * 5,
    *("admit",) * 6,
    *("replace",) * 4,
    *("stop", "start", "limit", "retention"),
    *("suspend",) * 3,
    "steps",
    "succeed",
    *("cordon", "checkpoint") * 2,
)
UP = ["look", "admit", "bring_up", "look"]
STORIES = (
    *(UP,) * 4,
    ["evict", "look", "queue", "look"],
    ["evict", "look", "suspend", "look"],
    ["queue", "look", "someone", "look"],
    ["limit", "look", "retention", "look"],
    ["stop", "look", "someone", "look"],
    ["evict", "look", "someone", "look"],
    ["train", "cordon", "look", "look", "checkpoint", "look"],
    ["train", "cordon", "look", "killed", "wait", "long", "look"],
)
"""Short sequences that are rare among single moves."""
TWICE = [*UP, "evict", "look", "collect", "evict", "look", "someone", "look"]
"""A RayJob that starts again after a loss is deleted before its pods are there."""


def wish(world: World, suspend: bool) -> None:
    """The user suspends or resumes."""
    if world.job["spec"].get("suspend", False) != suspend:
        world.touch(spec={"suspend": suspend})


def by_hand(world: World) -> None:
    """Someone deletes the RayJob."""
    if world.current:
        world.lose()
        world.delete_ray_job(world.current["metadata"]["name"])


def later(world: World, seconds: float) -> None:
    world.now += timedelta(seconds=seconds)


def report(world: World, **status: object) -> None:
    """The trainer reports something while it trains."""
    if world.phase == "Running":
        world.touch(world.job["status"] | status)


HAPPENINGS = {
    "look": lambda world, rng: world.step(),
    "killed": lambda world, rng: world.step(killed_after=rng.randrange(8)),
    "stale": lambda world, rng: world.step(stale_job=True),
    "bring_up": lambda world, rng: world.bring_up(),
    "collect": lambda world, rng: world.collect(),
    "wait": lambda world, rng: later(world, rng.choice([1, 4, 15])),
    "long": lambda world, rng: later(world, 400),
    "fail": lambda world, rng: world.fail(),
    "evict": lambda world, rng: world.evict(rng),
    "behead": lambda world, rng: world.behead(),
    "someone": lambda world, rng: by_hand(world),
    "queue": lambda world, rng: world.kueue_stops(rng.choice(["Preempted", "NodeFailures"]), active=True),
    "admit": lambda world, rng: world.kueue_admits(),
    "replace": lambda world, rng: world.replace_workers(),
    "stop": lambda world, rng: world.kueue_stops("Deactivated", active=False),
    "start": lambda world, rng: world.reactivate(),
    "limit": lambda world, rng: world.kueue_stops(f"DeactivatedDueTo{rng.choice(LIMITS)}", active=False),
    "retention": lambda world, rng: world.retention(),
    "suspend": lambda world, rng: wish(world, True),
    "resume": lambda world, rng: wish(world, False),
    "steps": lambda world, rng: world.touch(spec={"trainer": {"steps": rng.randrange(100, 1000)}}),
    "succeed": lambda world, rng: world.succeed(),
    "cordon": lambda world, rng: setattr(world, "cordoned", not world.cordoned),
    "train": lambda world, rng: report(world, step=world.job["status"].get("step", 0) + 1),
    "checkpoint": lambda world, rng: report(world, adapter={"step": world.job["status"].get("step", 0)}),
}


def move(world: World, name: str, rng: random.Random) -> None:
    """Let one thing happen."""
    HAPPENINGS[name](world, rng)


def ended_well(world: World) -> None:
    """Let the undisturbed job reach its end."""
    for _ in range(200):
        if world.phase in ("Succeeded", "Failed", "Suspended") and world.current_is_at_rest():
            return
        world.step()
        world.reactivate()
        world.kueue_admits()
        world.collect()
        world.bring_up()
        world.step()
        world.succeed()
        world.now += timedelta(seconds=20)
    raise AssertionError(f"no end: {world.job['status']}, {world.ray_jobs}")


def held_by_its_queue(world: Life) -> None:
    """Nothing that was stopped continues by itself."""
    stopped = world.stopped_by()
    if not stopped or world.job["spec"].get("suspend"):
        return
    later(world, 10)  # A RayJob that has just been created waits for its Workload, too.
    world.settle()
    if stopped == "Deactivated":
        assert (world.phase, world.reason) == ("Pending", "QueueStopped")
    else:
        assert (world.phase, world.reason[:5]) == ("Failed", "Queue")


def lets_go(world: Life) -> None:
    """No pod is kept from going but while its attempt trains, and then not long after its node is cordoned."""
    world.settle()
    waits = world.phase == "Running" and not world.job["status"].get("recoveringSince")
    drain = world.job["status"].get("drain") if waits else None
    assert (world.budget is not None) == (waits and not (drain or {}).get("released"))
    assert drain is None or world.cordoned
    if world.budget and world.cordoned and world.pods:
        later(world, 400)
        world.settle()
        assert world.budget is None, world.job["status"]


class Life(QueueWorld):
    """A world whose counters a test watches."""

    def current_is_at_rest(self) -> bool:
        job = self.job
        if job["status"].get("phase") == "Suspended":
            return job["spec"].get("suspend") is True and not self.ray_jobs
        return True

    @property
    def reason(self) -> str:
        """Reason of the condition Running."""
        return next(each["reason"] for each in self.job["status"]["conditions"] if each["type"] == "Running")

    def made_all_steps(self) -> bool:
        return self.job["status"]["step"] >= steps_of(self.job["spec"])

    def counters(self) -> tuple[int, int]:
        status = self.job["status"]
        return status.get("attempts", 0), status.get("preemptions", 0)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts=st.lists(st.sampled_from([*([one] for one in MOVES), *STORIES * 3]), min_size=10, max_size=60),
    seed=st.integers(0, 2**16),
    queued=st.booleans(),
    recovers=st.booleans(),
    limit=st.sampled_from([0, 2, 1000]),
)
@example(parts=[TWICE], seed=0, queued=True, recovers=False, limit=0)
def test_a_random_history(parts, seed, queued, recovers, limit):
    rng = random.Random(seed)
    world = Life(
        {"backoffLimit": limit, "maxPreemptionsWithoutProgress": 1000},
        {"kueue.x-k8s.io/queue-name": "research"} if queued else None,
        recovers=recovers,
    )
    before = world.counters()
    finished = ""
    for name in (name for part in parts for name in part):
        move(world, name, rng)
        after = world.counters()
        assert all(new >= old for new, old in zip(after, before, strict=True)), f"{name}: {before} became {after}"
        assert sum(after) - sum(before) <= 1, f"{name} counted twice: {before} became {after}"
        if finished:
            assert world.phase == finished, f"{name} restarted a job that was {finished}"
        if world.phase == "Succeeded" and not finished:
            assert world.made_all_steps(), (
                f"{name} ended a job at step {world.job['status']['step']}: {world.job['spec']}"
            )
        if name == "look":
            held_by_its_queue(world)
        finished = world.phase if world.phase in ("Succeeded", "Failed") else ""
        before = after
    ended_well(world)
    assert finished or world.phase != "Succeeded" or world.made_all_steps()
    attempts, preemptions = world.counters()
    assert preemptions <= len(world.lost)
    # A failure during a suspension, or after the loss of a pod, may be caused by that.
    assert len(world.plain_failures) <= attempts <= len(world.failures), (
        f"{attempts}, {world.plain_failures}, {world.failures}"
    )
    assert attempts <= limit + 1
    if world.phase == "Failed" and not world.reason.startswith("Queue"):
        assert attempts == limit + 1


@settings(max_examples=100, deadline=None)
@given(moves=st.lists(st.sampled_from(MOVES), max_size=25), seed=st.integers(0, 2**16), namespace_goes=st.booleans())
def test_a_job_can_be_deleted_at_any_moment(moves, seed, namespace_goes):
    rng = random.Random(seed)
    world = Life({"checkpoint": {"uri": "s3://team/adapters", "deletionPolicy": "Delete"}})
    for name in moves:
        move(world, name, rng)
    world.delete_job()
    for _ in range(40):
        if world.job is None:
            break
        move(world, rng.choice(["look", "killed"]), rng)
        world.collect()
        world.now += timedelta(seconds=30)
        if world.cleanup and not namespace_goes:
            world.cleanup["status"] = {"conditions": [condition("Complete", True)]}
    assert world.job is None


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(st.sampled_from([*([one] for one in MOVES), *STORIES * 3]), max_size=25),
    seed=st.integers(0, 2**16),
    recovers=st.booleans(),
)
def test_a_drain_waits_for_a_checkpoint_and_not_for_ever(parts, seed, recovers):
    rng = random.Random(seed)
    world = Life({"backoffLimit": 1000, "cluster": {"disruption": "AfterCheckpoint"}}, recovers=recovers)
    for name in (name for part in parts for name in part):
        move(world, name, rng)
        if name == "look":
            lets_go(world)


def test_the_number_of_writes_of_a_retry():
    world = Life()
    world.settle()
    world.bring_up()
    world.settle()
    before = world.writes
    world.fail()
    world.settle()
    world.collect()
    world.now += timedelta(seconds=11)
    world.settle()
    world.bring_up()
    world.settle()
    # Status and delete; five applies and the RayJob; Starting and Running in one write, since the pods were quick.
    assert world.writes - before <= 10
    assert world.counters() == (1, 0)
