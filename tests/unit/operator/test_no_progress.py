"""Attempts that end without progress, and nodes that end attempts: neither happens forever."""

from __future__ import annotations

from datetime import timedelta

import pytest

from unit.operator.decisions import PREEMPTED, RUNNING, conditions, decided, running_status, status_of
from unit.operator.observed_world import START, ago, condition, raw_job, raw_pod, raw_ray_job

UP = {"jobDeploymentStatus": "Initializing"}
READY = [condition("Ready", True)]


def lost(status, spec=None, pod=None, now=START):
    """The decision about a running attempt that loses a worker."""
    drained = raw_pod("worker", conditions=[condition("DisruptionTarget", True, "EvictionByEvictionAPI", "drained")])
    pods = [raw_pod("head", conditions=READY), pod or drained]
    return decided(
        raw_job(spec, running_status() | status | {"phase": "Running", "rayJobName": "demo-1"}),
        raw_ray_job(**RUNNING),
        pods=pods,
        now=now,
    )


def refused(node="node-7"):
    return raw_pod("worker", phase="Failed", reason="UnexpectedAdmissionError", message="no healthy GPU", nodeName=node)


class TestNoProgress:
    def test_preemptions_without_a_further_step_end_the_job(self):
        first = lost({"step": 7}).status
        assert (first["furthestStep"], first["preemptionsWithoutProgress"]) == (7, 0)
        again = lost(first | {"step": 7}, {"maxPreemptionsWithoutProgress": 2}).status
        assert (again["furthestStep"], again["preemptionsWithoutProgress"]) == (7, 1)
        assert again["phase"] == "Restarting"
        last = lost(again | {"step": 6}, {"maxPreemptionsWithoutProgress": 2})
        assert (last.status["phase"], last.status["attempts"]) == ("Failed", 0)
        failed = conditions(last)["Failed"]
        assert failed["reason"] == "NoProgress"
        assert "2 attempts in a row ended before they got beyond step 7" in failed["message"]
        assert "drained" in failed["message"]

    @pytest.mark.parametrize(("before", "reason"), [(0, "Restarting"), (1, "PreemptedAgain"), (5, "PreemptedAgain")])
    def test_the_next_attempt_waits_longer_only_after_several_of_them(self, before, reason):
        status = {"furthestStep": 7, "preemptionsWithoutProgress": before, "step": 7}
        status["conditions"] = [condition("Running", True, age=30)]
        assert conditions(lost(status))["Running"]["reason"] == reason

    def test_a_further_step_resets_the_count(self):
        status = {"furthestStep": 7, "preemptionsWithoutProgress": 19, "step": 8}
        decision = lost(status)
        assert (decision.status["furthestStep"], decision.status["preemptionsWithoutProgress"]) == (8, 0)

    def test_the_default_is_20(self):
        assert lost({"preemptionsWithoutProgress": 18}).status["phase"] == "Restarting"
        assert conditions(lost({"preemptionsWithoutProgress": 19}))["Failed"]["reason"] == "NoProgress"

    def test_a_queue_that_takes_its_machines_back_is_not_counted(self):
        ray_job = raw_ray_job(suspend=True)
        ray_job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "research"
        decision = decided(raw_job(status=running_status(preemptionsWithoutProgress=19)), ray_job, evidence=PREEMPTED)
        assert (decision.status["phase"], decision.status["preemptionsWithoutProgress"]) == ("Pending", 19)


class TestFaultyNodes:
    def test_a_node_that_refuses_pods_is_named(self):
        decision = lost({}, pod=refused())
        named = {"name": "node-7", "attempts": 1, "reason": "PodRefused", "lastTime": ago(0)}
        assert decision.status["faultyNodes"] == [named]

    @pytest.mark.parametrize(
        "pod",
        [
            raw_pod("worker", phase="Failed", reason="NodeLost", nodeName="node-7"),
            raw_pod(
                "worker", conditions=[condition("DisruptionTarget", True, "DeletionByTaintManager")], nodeName="node-7"
            ),
        ],
    )
    def test_a_node_that_is_lost_is_named(self, pod):
        assert [node["name"] for node in lost({}, pod=pod).status["faultyNodes"]] == ["node-7"]

    def test_a_drained_node_is_not_at_fault(self):
        assert "faultyNodes" not in lost({}).status

    @pytest.mark.parametrize(("hours", "attempts"), [(23, 2), (25, 1)])
    def test_its_faults_are_counted_for_a_day(self, hours, attempts):
        once = lost({}, pod=refused()).status
        twice = lost(once, pod=refused(), now=START + timedelta(hours=hours)).status
        assert [node["attempts"] for node in twice["faultyNodes"]] == [attempts]

    def test_of_many_nodes_the_latest_faults_are_kept(self):
        many = [
            {"name": f"node-{age}", "attempts": 1, "reason": "PodRefused", "lastTime": ago(age)}
            for age in range(900, 880, -1)
        ]
        kept = [node["name"] for node in lost({"faultyNodes": many}, pod=refused()).status["faultyNodes"]]
        assert kept == [*(f"node-{age}" for age in range(895, 880, -1)), "node-7"]

    @pytest.mark.parametrize(
        ("attempts", "age", "how"), [(1, 60, "preferred"), (2, 60, "required"), (1, 90_000, None), (2, 90_000, None)]
    )
    def test_the_next_attempt_avoids_a_node_with_faults(self, attempts, age, how):
        nodes = [{"name": "node-7", "attempts": attempts, "reason": "PodRefused", "lastTime": ago(age)}]
        status = status_of("Restarting", "demo-3", conditions=[condition("Running", False, "Restarting", age=60)])
        decision = decided(raw_job(status=status | {"faultyNodes": nodes}))
        cluster = decision.actions[-1].manifest["spec"]["rayClusterSpec"]
        for group in (cluster["headGroupSpec"], cluster["workerGroupSpecs"][0]):
            affinity = group["template"]["spec"].get("affinity", {}).get("nodeAffinity", {})
            assert list(affinity) == ([f"{how}DuringSchedulingIgnoredDuringExecution"] if how else [])
            assert ("node-7" in str(affinity)) == bool(how)

    def test_a_job_that_finds_no_room_says_which_nodes_it_avoids(self):
        nodes = [{"name": "node-7", "attempts": 2, "reason": "PodRefused", "lastTime": ago(60)}]
        full = condition("PodScheduled", False, "Unschedulable", "0/3 nodes")
        pods = [raw_pod("worker", phase="Pending", nodeName="", conditions=[full])]
        decision = decided(raw_job(status=status_of("Starting", faultyNodes=nodes)), raw_ray_job(**UP), pods=pods)
        assert "lorarl avoids node-7: see status.faultyNodes" in conditions(decision)["Running"]["message"]

    @pytest.mark.parametrize("stored", ["x", {}, {"name": "n", "attempts": "2"}, {"name": "n", "attempts": 2}])
    def test_an_entry_that_cannot_be_read_is_left_out(self, stored):
        status = {"faultyNodes": [stored]}
        assert [node["name"] for node in lost(status, pod=refused()).status["faultyNodes"]] == ["node-7"]


class TestStalled:
    def job(self, status, spec=None, reported=None):
        found = raw_job({"progressDeadlineSeconds": 600} | (spec or {}), status)
        entries = [{"manager": "lorarl-operator", "subresource": "status", "time": ago(1)}]
        if reported is not None:
            entries.append({"manager": "lorarl-trainer", "subresource": "status", "time": ago(reported)})
        found["metadata"]["managedFields"] = entries
        return found

    def status(self, age=5000):
        began = condition("Running", True, "Running", "Attempt 1 is training in RayJob demo-1.", age=age)
        return running_status(step=7) | {"conditions": [began]}

    def seen(self, job, *workers):
        pods = [raw_pod("head", conditions=READY), *(workers or [raw_pod("worker", nodeName="node-7")])]
        return decided(job, raw_ray_job(**RUNNING), pods=pods)

    def test_an_attempt_that_reports_nothing_is_ended_as_a_failure(self):
        decision = self.seen(self.job(self.status(), reported=601))
        assert (decision.status["phase"], decision.status["attempts"]) == ("Restarting", 1)
        assert decision.status["rayJobName"] == "demo-2"
        message = conditions(decision)["Running"]["message"]
        assert "ended with Stalled" in message
        assert "nothing for progressDeadlineSeconds, 600 s, since step 7" in message
        assert [node["name"] for node in decision.status["faultyNodes"]] == ["node-7"]
        last = self.seen(self.job(self.status(), {"backoffLimit": 0}, reported=601))
        assert conditions(last)["Failed"]["reason"] == "Stalled"

    def test_of_several_nodes_none_is_named(self):
        workers = [raw_pod("worker", name=node, nodeName=node) for node in ("node-7", "node-8")]
        decision = self.seen(self.job(self.status(), reported=601), *workers)
        assert decision.status["attempts"] == 1
        assert "faultyNodes" not in decision.status

    @pytest.mark.parametrize(("age", "reported", "left"), [(5000, 590, 10), (300, None, 300), (300, 9000, 300)])
    def test_it_waits_from_the_last_news_or_from_the_attempts_start(self, age, reported, left):
        decision = self.seen(self.job(self.status(age), reported=reported))
        assert (decision.actions, decision.recheck_seconds) == ((), left)

    def test_a_lost_node_is_no_hang(self):
        """Its pods leave it a minute after Kubernetes has missed it. That is a preemption, and keeps the quota."""
        lost = [condition("Ready", False), condition("ContainersReady", True)]
        pods = [raw_pod("head", conditions=lost), raw_pod("worker", nodeName="node-7", conditions=lost)]
        status = self.status()
        decision = decided(self.job(status, reported=610), raw_ray_job(**RUNNING), pods=pods)
        assert (decision.actions, decision.recheck_seconds) == ((), 290)
        left = raw_pod("head", conditions=[*lost, condition("DisruptionTarget", True, "DeletionByTaintManager")])
        decision = decided(self.job(status, reported=660), raw_ray_job(**RUNNING), pods=[left])
        assert (decision.status["preemptions"], decision.status["attempts"]) == (1, 0)
        stays = decided(self.job(status, reported=901), raw_ray_job(**RUNNING), pods=pods)
        assert "ended with Stalled" in conditions(stays)["Running"]["message"], "its tolerations let it stay there"

    def test_a_queue_that_takes_its_machines_back_comes_first(self):
        ray_job = raw_ray_job(suspend=True, **RUNNING)
        ray_job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "research"
        decision = decided(self.job(self.status(), reported=601), ray_job, evidence=PREEMPTED)
        assert (decision.status["phase"], decision.status["attempts"]) == ("Pending", 0)

    def test_without_a_deadline_it_may_take_any_time(self):
        job = self.job(self.status(), {"progressDeadlineSeconds": None}, reported=90_000)
        assert self.seen(job).actions == ()
