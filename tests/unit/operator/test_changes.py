"""A job that is changed while nothing of it runs: the next attempt has the change, and nothing is counted."""

from __future__ import annotations

import pytest

from lorarl_operator.decide import parse
from lorarl_operator.decide.valid_spec import checked_spec
from lorarl_operator.manifests.digests import pods_digest
from unit.operator.decisions import QUEUE
from unit.operator.observed_world import condition, raw_job, raw_pod
from unit.operator.world import World

OTHER_QUEUE = {"kueue.x-k8s.io/queue-name": "large", "kueue.x-k8s.io/priority-class": "urgent"}


def conditions_of(world):
    return {each["type"]: each for each in world.job["status"]["conditions"]}


def waiting(labels=None, spec=None):
    """A job whose RayJob exists and has not begun; with a queue's label the queue holds it."""
    world = World(spec, labels or {})
    world.settle()
    assert list(world.ray_jobs) == ["demo-1"]
    return world


def relabel(world, labels):
    world.job["metadata"]["labels"] = labels
    world.touch()


def replaced(world):
    """The RayJob that takes the place of `demo-1`."""
    world.settle()
    assert "deletionTimestamp" in world.ray_jobs["demo-1"]["metadata"]
    assert world.phase == "Restarting"
    assert conditions_of(world)["Running"]["reason"] == "Changed"
    world.collect()
    world.now = world.now.replace(second=world.now.second + 2)
    world.settle()
    assert list(world.ray_jobs) == ["demo-2"]
    assert (world.job["status"]["attempts"], world.job["status"]["preemptions"]) == (0, 0)
    return world.ray_jobs["demo-2"]


def test_another_queue_or_priority_is_honoured_while_the_job_waits():
    """Before, nothing happened and nothing was said."""
    world = waiting(QUEUE)
    relabel(world, OTHER_QUEUE)
    assert replaced(world)["metadata"]["labels"].items() >= OTHER_QUEUE.items()
    message = next(event.message for event in world.events if event.reason == "Changed")
    assert message == "The job's labels changed while attempt 1 waited. Attempt 2 takes its place."


def test_other_labels_of_the_job_change_nothing():
    world = waiting(QUEUE)
    relabel(world, QUEUE | {"team": "research"})
    world.settle()
    assert list(world.ray_jobs) == ["demo-1"]


def test_a_label_of_kueues_own_is_no_change():
    world = waiting(QUEUE)
    world.ray_jobs["demo-1"]["metadata"]["labels"]["kueue.x-k8s.io/managed"] = "true"
    world.settle()
    assert list(world.ray_jobs) == ["demo-1"]


def test_more_memory_reaches_a_job_that_no_node_fits():
    """The fix for Unschedulable and OutOfMemory needs no new job."""
    world = waiting()
    world.pods = [
        raw_pod(
            nodeName="",
            phase="Pending",
            conditions=[condition("PodScheduled", False, "Unschedulable", "0/3 nodes are available")],
        )
    ]
    world.pods[0]["metadata"]["labels"]["ray.io/cluster"] = "cluster-1"
    world.settle()
    assert conditions_of(world)["Running"]["reason"] == "Unschedulable"
    world.touch(spec={"cluster": {"memoryPerNode": "8Gi"}})
    ray_job = replaced(world)
    assert ray_job["metadata"]["annotations"]["lorarl.io/generation"] == "2"
    config = [each for each in world.applied if each["kind"] == "ConfigMap"][-1]
    assert "8Gi" in config["data"]["job.yaml"]


@pytest.mark.parametrize(
    "change",
    [{"tracking": {"wandb": {"project": "x", "credentialsSecret": "w"}}}, {"trainer": {"tensorParallelSize": 2}}],
)
def test_whatever_its_pods_follow_from_counts(change):
    world = waiting()
    world.touch(spec=change)
    assert replaced(world)


def test_a_training_that_runs_keeps_its_machines():
    world = waiting()
    world.bring_up()
    world.settle()
    world.touch(spec={"cluster": {"memoryPerNode": "8Gi"}})
    relabel(world, OTHER_QUEUE)
    world.settle()
    assert world.phase == "Running"
    assert list(world.ray_jobs) == ["demo-1"]


def test_a_training_that_its_queue_preempts_is_counted_first():
    world = waiting(QUEUE)
    world.ray_jobs["demo-1"]["spec"]["suspend"] = False
    world.bring_up()
    world.settle()
    relabel(world, OTHER_QUEUE)
    world.ray_jobs["demo-1"]["spec"]["suspend"] = True
    world.settle()
    assert world.job["status"]["preemptions"] == 1
    assert world.job["status"]["rayJobName"] == "demo-2"


@pytest.mark.parametrize(
    "change", [{"backoffLimit": 5}, {"trainer": {"steps": 300}}, {"trainer": {"recompute": "full"}}]
)
def test_what_no_pod_follows_from_replaces_nothing(change):
    """The trainer reads it from the ConfigMap when it starts."""
    world = waiting()
    world.touch(spec=change)
    world.settle()
    assert list(world.ray_jobs) == ["demo-1"]


def test_a_spec_that_cannot_be_read_replaces_nothing():
    world = waiting()
    world.touch(spec={"cluster": {"memoryPerNode": 8}})
    world.settle()
    assert list(world.ray_jobs) == ["demo-1"]


def test_a_rayjob_of_an_older_operator_is_left_alone():
    world = waiting(QUEUE)
    for name in ("lorarl.io/pods", "lorarl.io/passed"):
        del world.ray_jobs["demo-1"]["metadata"]["annotations"][name]
    world.touch(spec={"cluster": {"memoryPerNode": "8Gi"}})
    relabel(world, OTHER_QUEUE)
    world.settle()
    assert list(world.ray_jobs) == ["demo-1"]


def test_a_default_that_is_written_out_is_no_change():
    """The API server fills in the defaults of a newer definition."""
    plain, written = (
        checked_spec(parse.job(raw_job({"cluster": cluster})))
        for cluster in ({}, {"gpuResource": "nvidia.com/gpu", "head": {"cpus": "1"}, "podTemplateOverrides": {}})
    )
    assert pods_digest(plain) == pods_digest(written)


def test_the_image_that_a_job_keeps_is_no_change():
    world = World()
    world.touch(status={"trainerImage": "registry.example.com/lorarl/trainer:0.0.9"})
    world.settle()
    world.touch(spec={"trainer": {"steps": 9}})
    world.settle()
    assert list(world.ray_jobs) == ["demo-1"]
    assert "deletionTimestamp" not in world.ray_jobs["demo-1"]["metadata"]


KEPT = "registry.example.com/lorarl/trainer:0.0.9@sha256:" + "a" * 64


@pytest.mark.parametrize("began_with", [None, KEPT.partition("@")[0], KEPT])
def test_another_change_after_a_preemption_keeps_the_queues_place(began_with):
    """The job keeps an image since it ran. Its RayJob has the operator's, a template's, or that of an earlier one."""
    world = waiting(QUEUE)
    if began_with:
        digest = pods_digest(checked_spec(parse.job(raw_job({"cluster": {"image": began_with}}))))
        world.ray_jobs["demo-1"]["metadata"]["annotations"]["lorarl.io/pods"] = digest
    world.ray_jobs["demo-1"]["spec"]["suspend"] = False
    world.bring_up()
    world.settle()
    world.touch(status=world.job["status"] | {"trainerImage": KEPT})
    world.ray_jobs["demo-1"]["spec"]["suspend"] = True
    world.touch(spec={"backoffLimit": 5})
    world.settle()
    assert (world.phase, conditions_of(world)["Running"]["reason"]) == ("Pending", "Queued")
    assert world.job["status"]["rayJobName"] == "demo-1"
    # A real change still takes its place.
    world.touch(spec={"cluster": {"image": "registry.example.com/lorarl/trainer:0.1.0"}})
    world.settle()
    assert conditions_of(world)["Running"]["reason"] == "Changed"
