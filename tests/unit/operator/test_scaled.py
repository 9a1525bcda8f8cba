"""Someone scales the RayCluster of a running attempt, which trains as before and holds more machines."""

from __future__ import annotations

import pytest

from unit.operator.decisions import RUNNING, conditions, decided, running_status
from unit.operator.observed_world import ago, raw_job, raw_pod, raw_ray_job


def workers(*ages, **parts):
    return [raw_pod("worker", name=f"worker-{number}", age=age, **parts) for number, age in enumerate(ages)]


def seen(*pods, status=None):
    return decided(raw_job(status=status or running_status()), raw_ray_job(**RUNNING), pods=[raw_pod("head"), *pods])


def test_it_is_told_once_with_the_way_back():
    decision = seen(*workers(60, 20, 20))
    message = conditions(decision)["Running"]["message"]
    assert "RayCluster cluster-1 has more worker pods than cluster.nodes, 1" in message
    assert "Set its workerGroupSpecs[0].replicas to 1." in message
    assert [(event.type, event.reason) for event in decision.events] == [("Warning", "Scaled")]
    assert decision.status["phase"] == "Running"
    assert seen(*workers(60, 20, 20), status=decision.status).status is None
    undone = seen(*workers(60), status=decision.status)
    assert conditions(undone)["Running"]["message"] == "Attempt 1 is training in RayJob demo-1."
    assert undone.events == ()


@pytest.mark.parametrize(
    "others",
    [
        workers(60, 2),
        [*workers(60), raw_pod("worker", name="old", deletionTimestamp=ago(-30), deletionGracePeriodSeconds=60)],
        [*workers(60), raw_pod("worker", name="ended", phase="Failed")],
    ],
    ids=["a replacement that just came", "one that leaves", "one that has ended"],
)
def test_a_pod_that_is_being_replaced_is_nobodys_change(others):
    decision = seen(*others)
    assert not [event for event in decision.events if event.reason == "Scaled"]
