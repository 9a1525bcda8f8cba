"""The start of an attempt: its first objects, and the status that follows."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lorarl_operator.decide.decision import Apply, Create, Delete
from lorarl_operator.decide.models import Refusal
from unit.operator.decisions import QUEUE, RUNNING, conditions, decided, kinds, running_status, status_of
from unit.operator.observed_world import START, ago, condition, raw_job, raw_ray_job
from unit.operator.world import World


class TestFirstAttempt:
    def test_the_objects_that_pods_need_then_the_rayjob_and_no_status_yet(self):
        decision = decided(raw_job())
        assert decision.status is None
        assert kinds(decision.actions) == ["ServiceAccount", "ConfigMap", "NetworkPolicy", "RayJob"]
        assert [type(action) for action in decision.actions] == [Apply, Apply, Apply, Create]
        assert decision.actions[-1].manifest["metadata"]["name"] == "demo-1"

    @pytest.mark.parametrize("suspended", [False, True])
    def test_the_trainer_gets_permission_before_the_status_names_the_rayjob(self, suspended):
        decision = decided(raw_job(), raw_ray_job(age=1, suspend=suspended))
        assert kinds(decision.prepare) == ["Role", "RoleBinding"]
        assert decision.status["rayJobName"] == "demo-1"
        assert decided(raw_job(status=decision.status), raw_ray_job(age=1, suspend=suspended)).prepare == ()

    def test_a_refused_permission_is_reported_and_granted_later(self):
        refusal = Refusal(
            "Role", "lorarl-demo", 403, "Forbidden", "attempting to grant RBAC permissions not held", START, 1
        )
        decision = decided(raw_job(), raw_ray_job(age=1), refusal=refusal)
        assert (decision.status["phase"], conditions(decision)["Running"]["reason"]) == ("Pending", "ObjectRefused")
        later = decided(raw_job(status=decision.status), raw_ray_job(age=1))
        assert kinds(later.prepare) == ["Role", "RoleBinding"]
        assert later.status["phase"] == "Starting"

    def test_a_later_attempt_applies_all_objects_before_its_rayjob(self):
        status = {"phase": "Restarting", "rayJobName": "demo-2", "preemptions": 1}
        assert kinds(decided(raw_job(status=status)).actions) == [
            "ServiceAccount",
            "ConfigMap",
            "NetworkPolicy",
            "Role",
            "RoleBinding",
            "RayJob",
        ]

    def test_its_rayjob_is_seen(self):
        decision = decided(raw_job(), raw_ray_job(age=1))
        assert decision.status["phase"] == "Starting"
        assert decision.status["rayJobName"] == "demo-1"
        assert decision.status["startTime"] == ago(0)
        assert conditions(decision)["Running"]["status"] == "False"
        assert decision.actions == ()

    def test_it_runs(self):
        decision = decided(raw_job(status=status_of("Starting")), raw_ray_job(**RUNNING, dashboardURL="head:8265"))
        assert decision.status["phase"] == "Running"
        assert decision.status["dashboardURL"] == "http://head:8265"
        assert conditions(decision)["Running"]["status"] == "True"
        assert [event.reason for event in decision.events] == ["Running"]

    def test_it_succeeds(self):
        decision = decided(
            raw_job(status=running_status()), raw_ray_job(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")
        )
        assert decision.status["phase"] == "Succeeded"
        assert conditions(decision)["Complete"]["status"] == "True"
        assert decision.status["completionTime"] == ago(0)
        assert decision.actions == ()  # Its head stays for its logs.

    def test_an_undisturbed_job_takes_at_most_12_writes_and_then_none(self):
        world = World({"checkpoint": {"uri": "s3://team/adapters", "deletionPolicy": "Delete"}})
        world.settle()
        world.bring_up()
        world.settle()
        world.succeed()
        world.settle()
        assert world.phase == "Succeeded"
        at_the_end = world.writes
        world.settle()
        assert world.writes == at_the_end
        world.delete_job()
        world.settle()
        world.collect()
        world.settle()
        world.cleanup["status"] = {"conditions": [condition("Complete", True)]}
        world.settle()
        assert world.job is None
        assert world.writes <= 12

    @pytest.mark.parametrize("suspend", [False, True])
    def test_without_changes_nothing_is_written(self, suspend):
        world = World({"suspend": suspend})
        world.settle()
        world.bring_up()
        world.settle()
        writes = world.writes
        for _ in range(50):
            world.now += timedelta(minutes=1)
            world.settle()
        assert world.writes == writes


def test_a_ray_job_that_kueue_sends_to_another_cluster_fails_the_job():
    """KubeRay leaves such a RayJob alone here, and its pods have neither ConfigMap nor ServiceAccount there."""
    ray_job = raw_ray_job(suspend=True)
    ray_job["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    ray_job["metadata"]["labels"] |= QUEUE
    decision = decided(raw_job(status=status_of("Starting")), ray_job)
    assert decision.status["phase"] == "Failed"
    assert conditions(decision)["Failed"]["reason"] == "MultiKueue"
    assert "Queue research sends RayJob demo-1 to other clusters" in conditions(decision)["Failed"]["message"]
    assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)


def test_a_ray_job_that_names_kuberay_as_its_manager_runs_here():
    ray_job = raw_ray_job(**RUNNING)
    ray_job["spec"]["managedBy"] = "ray.io/kuberay-operator"
    assert decided(raw_job(status=status_of("Starting")), ray_job).status["phase"] == "Running"
