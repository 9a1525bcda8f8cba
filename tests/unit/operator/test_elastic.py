"""Jobs with `cluster.minNodes`: what the operator does as pods come and go, also in random histories."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.decision import Scale
from lorarl_operator.decide.models import Evidence, Refusal, Workload
from lorarl_operator.decide.parse import time
from unit.operator.decisions import QUEUE, conditions, status_of
from unit.operator.elastic_world import FULL, GPUS, World
from unit.operator.observed_world import SETTINGS, START, condition, observed, raw_job, raw_ray_job

WAIT, GROW = SETTINGS.elastic_wait_seconds, SETTINGS.elastic_grow_seconds
CHANGES = ("StartsShort", "Grew", "Shrank")


def started(fewest=1, most=4, room=2, seconds=WAIT + 60):
    world = World(fewest, most, room)
    world.operate()
    world.wait(seconds)
    return world


def conditions_of(world):
    return {each["type"]: each for each in world.status["conditions"]}


def told(world, *reasons):
    return [event.message for event in world.events if event.reason in reasons]


def test_an_attempt_starts_on_what_there_is_and_asks_for_the_rest_again():
    world = started(seconds=WAIT - 20)
    assert (world.runs, world.scales) == (False, [])
    world.wait(60)
    assert world.scales == [(1, 2), (1, 4)]
    assert (world.status["phase"], world.status["nodes"], world.status["gpus"]) == ("Running", 2, 2 * GPUS)
    (message,) = told(world, *CHANGES)
    assert message.startswith(f"Attempt 1 starts on 2 of 4 nodes, because no other pod got a node within {WAIT} s.")
    assert FULL in message
    assert len(world.pods) == 4, "the missing ones are pending"
    running = next(each for each in world.status["conditions"] if each["type"] == "Running")
    assert running["message"] == "Attempt 1 is training in RayJob demo-1. It has 2 of 4 nodes."


def test_without_enough_nodes_it_waits():
    world = started(fewest=3, room=2, seconds=2 * WAIT)
    assert (world.runs, world.scales) == (False, [])


def test_a_job_without_min_nodes_has_all_or_none():
    world = started(fewest=4, room=3, seconds=2 * WAIT)
    assert (world.runs, world.scales, "nodes" in world.status) == (False, [], False)


def test_it_goes_on_without_a_lost_node_and_grows_again():
    world = started(room=4)
    assert told(world, *CHANGES) == []
    world.lose()
    world.wait(WAIT - 30)
    assert next(each for each in world.status["conditions"] if each["type"] == "Running")["reason"] == "Recovering"
    world.wait(60)
    assert told(world, *CHANGES) == ["Attempt 1 continues after step 0 with 4 of 4 nodes before, and 3 now."]
    status = world.status
    assert (status["phase"], status["nodes"], status["gpus"]) == ("Running", 3, 3 * GPUS)
    assert (status["attempts"], status["preemptions"], status["recoveries"], world.attempt) == (0, 1, 1, 1)
    world.room = 4
    world.wait(GROW - 60)
    assert (world.status["nodes"], world.status["gpus"]) == (3, 4 * GPUS), (
        "it is held, and used after the next checkpoint"
    )
    world.wait(120)
    assert told(world, "Grew") == ["Attempt 1 continues after step 0 with 3 of 4 nodes before, and 4 now."]
    assert world.scales == [], "KubeRay replaces what is lost"


def test_fewer_than_it_needs_end_the_attempt_without_a_failure():
    world = started(fewest=2, room=2, most=3)
    world.lose()
    world.wait(SETTINGS.recovery_seconds + WAIT + 60)
    assert (world.attempt, world.status["attempts"], world.status["preemptions"]) == (2, 0, 1)


def test_an_operator_that_is_killed_after_the_status_scales_later():
    world = started(seconds=WAIT - 20)
    world.seconds += 60
    world.operate(killed=True)
    assert (world.scales, world.status["nodes"], told(world, "StartsShort")) == ([], 4, [])
    world.operate()
    assert world.scales[0] == (1, 2)
    world.operate()
    assert len(told(world, "StartsShort")) == 1


def test_each_attempt_asks_for_all_and_says_so_if_it_starts_on_fewer():
    world = started(fewest=2, room=2)
    world.lose()
    world.wait(SETTINGS.recovery_seconds + WAIT + 60)
    assert (world.attempt, world.status["nodes"], len(told(world, "StartsShort"))) == (2, 4, 1)
    world.room = 2
    world.wait(WAIT + 60)
    assert (world.status["phase"], world.status["nodes"]) == ("Running", 2)
    assert [message.split(" because")[0] for message in told(world, "StartsShort")] == [
        f"Attempt {attempt} starts on 2 of 4 nodes," for attempt in (1, 2)
    ]


def test_an_attempt_after_a_short_one_may_have_all_and_has_not_grown():
    world = started(fewest=2, room=2)
    world.lose()
    world.wait(SETTINGS.recovery_seconds + WAIT + 60)
    world.room = 4
    world.kuberay()
    world.operate()
    assert (world.attempt, world.status["phase"], world.trains, world.status["nodes"]) == (2, "Running", set(), 4)
    world.wait(60)
    assert (world.status["nodes"], told(world, "Grew")) == (4, [])


def test_a_job_whose_workers_start_again_with_more_says_so():
    world = started()
    world.status["workers"] |= {"growing": "there are machines for more workers"}
    world.operate()
    message = conditions_of(world)["Running"]["message"]
    assert "It has 2 of 4 nodes. All workers start again, on more of them." in message


def test_gpus_are_charged_while_a_pod_has_a_node():
    world = started(room=4)
    world.lose()
    world.wait(WAIT + 60)
    world.room = 4
    world.wait(GROW)
    status = world.status
    present = START + timedelta(seconds=world.seconds) - time(status["gpusHeldSince"])
    total = status["heldGpuSeconds"] + status["gpus"] * present.total_seconds()
    assert total == pytest.approx(world.held, abs=4 * GPUS * 20)
    assert world.held < 4 * GPUS * world.seconds - GPUS * WAIT, "and not while it is lost"


@settings(max_examples=30, deadline=None)
@given(
    st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(0, 5)),
    st.lists(
        st.one_of(
            st.tuples(st.just("wait"), st.sampled_from([10, 100, 290, 310, 700])),
            st.tuples(st.just("comes"), st.integers(1, 3)),
            st.tuples(st.just("lose"), st.integers(1, 2)),
            st.tuples(st.just("killed"), st.just(0)),
        ),
        max_size=8,
    ),
)
def test_random_histories(size, steps):
    fewest, more, room = size
    world = World(fewest, fewest + more, room)
    world.operate()
    held = seen_late = 0
    for what, count in steps:
        match what:
            case "wait":
                world.wait(count)
            case "comes":
                world.room += count
            case "lose":
                for _ in range(count):
                    world.lose()
                    seen_late += 10 * GPUS
            case "killed":
                world.operate(killed=True)
        world.wait(10)
        if "nodes" in world.status:
            assert fewest <= world.status["nodes"] <= fewest + more
        assert held <= world.status.get("heldGpuSeconds", 0) <= world.held + seen_late + 1
        held = world.status.get("heldGpuSeconds", 0)
        assert world.status.get("attempts", 0) == 0
    for attempt, times in Counter(attempt for attempt, _ in world.scales).items():
        down, *up = [replicas for each, replicas in world.scales if each == attempt]
        assert times <= 2 and down < fewest + more and up in ([], [fewest + more])
    assert len(told(world, "StartsShort")) == len({attempt for attempt, _ in world.scales})
    # Whatever happened: with enough room for long enough, it trains on all nodes.
    world.room = fewest + more
    world.wait(2 * (SETTINGS.recovery_seconds + WAIT + GROW))
    assert len(world.trains) == fewest + more
    assert (world.status["phase"], world.status.get("nodes", fewest)) == ("Running", fewest + more)


def in_queue(asked, seconds=WAIT + 10, reserved=False, status=None, **cluster):
    ray_job = raw_ray_job(suspend=True, age=0, jobDeploymentStatus="Suspended")
    ray_job["metadata"]["labels"] |= QUEUE
    ray_job["spec"]["rayClusterSpec"] = {"workerGroupSpecs": [{"groupName": "workers", "replicas": asked}]}
    why = ("QuotaReserved", reserved, "Pending", "insufficient unused quota")
    evidence = Evidence(workload=Workload("rayjob-demo-1", (why,)))
    spec = {"cluster": {"nodes": 4, "minNodes": 1, "gpusPerNode": 8} | cluster}
    seen = observed(raw_job(spec, status or status_of("Pending")), ray_job, evidence=evidence)
    return decide(seen, START + timedelta(seconds=seconds), SETTINGS)


@pytest.mark.parametrize(("asked", "then"), [(4, 2), (3, 1), (2, 1)])
def test_a_queue_is_asked_for_half_after_a_while(asked, then):
    decision = in_queue(asked)
    assert (decision.status["rayJobName"], decision.status["nodes"]) == ("demo-2", then)
    assert conditions(decision)["Running"]["reason"] == "FewerNodes"
    seen = observed(raw_job({"cluster": {"nodes": 4, "minNodes": 1, "gpusPerNode": 8}}, decision.status))
    created = decide(seen, START + timedelta(seconds=WAIT + 60), SETTINGS).actions[-1].manifest
    (group,) = created["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (then, 1, then)
    head = created["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert {"name": "LORARL_NODES", "value": str(then)} in head["env"]


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        (4, {"seconds": WAIT - 10}),
        (1, {}),
        (4, {"minNodes": 4}),
        (4, {"reserved": True}),
    ],
    ids=["not for long yet", "the fewest", "all or none", "it has its quota, and waits for a check"],
)
def test_otherwise_the_queue_is_waited_for(asked, more):
    assert in_queue(asked, **more).actions == ()


@pytest.mark.parametrize("reason", ["RayJobStays", "QuotaExceeded"])
def test_what_a_queue_is_asked_for_outlasts_other_reasons_to_wait(reason):
    status = in_queue(4).status
    blocked = condition("Running", False, reason, "any")
    status = status | {"phase": "Pending", "conditions": [blocked]}
    seen = observed(raw_job({"cluster": {"nodes": 4, "minNodes": 1, "gpusPerNode": 8}}, status))
    created = decide(seen, START + timedelta(seconds=WAIT + 60), SETTINGS).actions[-1].manifest
    assert created["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] == 2


def test_a_job_that_was_suspended_asks_its_queue_for_all_again():
    spec = {"cluster": {"nodes": 4, "minNodes": 1, "gpusPerNode": 8}}
    suspended = decide(observed(raw_job(spec | {"suspend": True}, in_queue(4).status)), START, SETTINGS).status
    created = decide(observed(raw_job(spec, suspended)), START, SETTINGS).actions[-1].manifest
    assert created["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] == 4


@pytest.mark.parametrize("nodes", [2, 6])
def test_a_change_of_the_nodes_is_for_the_next_attempt(nodes):
    """The spec may change with suspend: true, which is taken back before an operator sees it."""
    world = started(room=3)
    world.most = nodes
    world.operate()
    assert world.scales == [(1, 3), (1, 4)]


def test_the_attempt_after_another_end_asks_for_all_again():
    status = status_of("Restarting", "demo-2", nodes=1, conditions=[condition("Running", False, "Restarting", age=60)])
    seen = observed(raw_job({"cluster": {"nodes": 4, "minNodes": 1, "gpusPerNode": 8}}, status))
    created = decide(seen, START, SETTINGS).actions[-1].manifest
    assert created["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] == 4


def test_a_refused_change_is_not_tried_all_the_time():
    world = started(seconds=WAIT - 20)
    world.seconds += 60
    (scale,) = world.decided().actions
    assert isinstance(scale, Scale)
    now = START + timedelta(seconds=world.seconds)
    world.refusal = Refusal("RayCluster", scale.name, 403, "Forbidden", "no", now, 1)
    decision = world.decided()
    assert decision.actions == ()
    why = f"It does not start on fewer nodes, because RayCluster {scale.name} is refused: no."
    assert why in conditions(decision)["Running"]["message"] and FULL in conditions(decision)["Running"]["message"]
    world.operate()
    assert (world.status["nodes"], told(world, "StartsShort")) == (4, [])
    world.seconds += SETTINGS.refused_seconds
    assert world.decided().actions == (scale,)


def test_a_job_that_may_not_ask_for_its_other_nodes_says_so():
    world = started(seconds=WAIT + 60)
    world.replicas = 2
    world.pods = {name: at for name, at in world.pods.items() if at is not None}
    now = START + timedelta(seconds=world.seconds)
    world.refusal = Refusal("RayCluster", "cluster-1", 403, "Forbidden", "no", now, 1)
    decision = world.decided()
    assert decision.actions == ()
    told = "It has 2 of 4 nodes. It asks for no others, because RayCluster cluster-1 is refused: no."
    assert told in conditions(decision)["Running"]["message"]


def test_a_job_whose_other_pods_a_quota_refuses_says_so(monkeypatch):
    world = started(seconds=WAIT + 60)
    plain = world._cluster
    quota = 'FailedCreateWorkerPod\npods "cluster-1-workers-worker-ab1" is forbidden: exceeded quota: gpus'
    failure = condition("ReplicaFailure", True, "FailedCreateWorkerPod", quota)
    monkeypatch.setattr(world, "_cluster", lambda: plain() | {"status": {"conditions": [failure]}})
    message = conditions(world.decided())["Running"]["message"]
    assert "It has 2 of 4 nodes: its pod is forbidden: exceeded quota: gpus." in message
