"""A sweep whatever happens: its jobs end, are suspended, deleted and stopped in their queue, and its spec changes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from unit.operator.sweep_world import FINISHED, World, name, stopping

STEPS = st.one_of(
    st.tuples(st.just("decide"), st.none() | st.integers(0, 4)),
    st.tuples(st.sampled_from(["train", "end", "fail", "obey", "hold", "delete", "stop", "start"]), st.integers(0, 3)),
    st.tuples(st.sampled_from(["suspend", "stopping", "halving", "exempt"]), st.integers(0, 1)),
)


def act(world: World, what: str, which: int | None) -> None:
    """A decision, or what a user changes of the sweep."""
    match what:
        case "decide":
            world.step(which)
        case "suspend":
            world.spec["suspend"] = bool(which)
        case "stopping":
            world.spec |= {"stopping": stopping(startAfter=1)}
            if which:
                del world.spec["stopping"]
        case "halving":
            world.spec |= {"stopping": {"halving": {"startAfter": 1 + which, "factor": 2}}} if which is not None else {}
        case "exempt":
            if "stopping" in world.spec:
                world.spec["stopping"]["exempt"] = [name(which or 0)]
        case _:
            act_on_job(world, what, which or 0)


def act_on_job(world: World, what: str, number: int) -> None:
    """What a training does, or a user with its job."""
    job = name(number)
    if job not in world.jobs:
        return
    there, running = world.phase(job) not in FINISHED, world.phase(job) == "Running"
    match what:
        case "stop" if there and not world.is_stopped(job) and world.phase(job) != "Suspended":
            world.stops(job)
        case "start" if world.is_stopped(job):
            world.starts(job)
        case "train" if running or (world.phase(job) == "Pending" and not world.is_stopped(job)):
            step = world.jobs[job].get("status", {}).get("step", 0) + 1
            world.reports(job, step, number / 10 + 0.01 * step)
        case "end" if running:
            world.set_phase(job, "Succeeded")
        case "fail" if running:
            world.set_phase(job, "Failed")
        case "obey" if there:
            world.obeys(job)
        case "hold" if there:  # a user suspends it
            world.jobs[job]["spec"]["suspend"] = True
        case "delete" if world.status.get("trials") and world.trial(number).get("uid"):
            del world.jobs[job]


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_any_history_makes_each_trial_once_and_never_too_many_at_a_time(history: list[tuple[str, int | None]]) -> None:
    world = World()
    for what, which in history:
        act(world, what, which)
        assert world.most_unfinished <= 2, history
        assert all(count == 1 for count in world.made.values()), history
    world.spec |= {"suspend": False}
    for _ in range(60):
        world.settle()
        for job in list(world.jobs):
            if world.phase(job) not in FINISHED:
                if world.is_stopped(job):
                    world.starts(job)
                held = world.jobs[job]["spec"].get("suspend") and not world.trial(int(job[-1])).get("suspended")
                world.jobs[job]["spec"]["suspend"] = world.jobs[job]["spec"].get("suspend", False) and not held
                world.obeys(job)
                if world.phase(job) == "Pending" or world.phase(job) == "Running":
                    world.set_phase(job, "Succeeded")
    world.settle()
    assert world.most_unfinished <= 2
    assert world.made == {name(seed): 1 for seed in range(4)}
    assert set(world.phases) <= {"Succeeded", "Failed", "Stopped", "Deleted"}
    assert {"Succeeded", "Failed", "Deleted"} & set(world.phases), "not all of them are stopped"
    assert world.status["phase"] in ("Succeeded", "Failed") and world.status["finished"] == 4
    resting = world.look()
    assert resting.status is None and not resting.actions
