"""Deadlines and the time to live of a job."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from lorarl_operator.decide.decision import Delete, DeleteJob
from lorarl_operator.decide.models import Refusal
from unit.operator.decisions import QUEUE, RUNNING, conditions, decided, gone_since, running_status, status_of
from unit.operator.observed_world import START, ago, condition, raw_job, raw_pod, raw_ray_job


class TestDeadlines:
    def test_active_deadline(self):
        job = raw_job({"activeDeadlineSeconds": 60}, running_status())
        assert decided(job, raw_ray_job(**RUNNING)).recheck_seconds == 10
        decision = decided(job, raw_ray_job(**RUNNING), now=START + timedelta(seconds=10))
        assert conditions(decision)["Failed"]["reason"] == "DeadlineExceeded"
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)

    def test_start_deadline_says_what_it_waited_for(self):
        pods = [
            raw_pod(
                "worker", phase="Pending", conditions=[condition("PodScheduled", False, "Unschedulable", "0/3 nodes")]
            )
        ]
        job = raw_job({"startDeadlineSeconds": 60}, status_of("Pending"))
        decision = decided(job, raw_ray_job(age=60, jobDeploymentStatus="Initializing"), pods=pods)
        assert conditions(decision)["Failed"]["reason"] == "StartDeadlineExceeded"
        assert "0/3 nodes" in conditions(decision)["Failed"]["message"]

    def test_the_time_in_a_queue_does_not_count(self):
        job = raw_job({"startDeadlineSeconds": 60, "activeDeadlineSeconds": 60})
        ray_job = raw_ray_job(age=9000, suspend=True)
        ray_job["metadata"]["labels"] |= QUEUE
        assert decided(job, ray_job).status["phase"] == "Pending"
        admitted = raw_ray_job(age=9000, jobDeploymentStatus="Initializing", startTime=ago(20))
        admitted["metadata"]["labels"] |= QUEUE
        assert decided(job, admitted).status["phase"] == "Starting"

    def held(self, *pods, spec=None, now=START):
        """The decision about an attempt of a job without startDeadlineSeconds, on two nodes."""
        ray_job = raw_ray_job(age=90_000, jobDeploymentStatus="Initializing")
        return decided(raw_job({"cluster": {"nodes": 2}} | (spec or {})), ray_job, pods=list(pods), now=now)

    def test_machines_are_not_held_forever(self):
        def placed(role, age, name=""):
            scheduled = condition("PodScheduled", True, age=age)
            return raw_pod(role, name=name, age=90_000, phase="Pending", conditions=[scheduled])

        pods = [placed("head", 80_000), placed("worker", 7100, "a"), placed("worker", 7190, "b")]
        assert self.held(*pods).status["phase"] == "Starting"
        decision = self.held(*pods, now=START + timedelta(seconds=100))
        assert conditions(decision)["Failed"]["reason"] == "StartDeadlineExceeded"
        assert "did not run within 7200 s" in conditions(decision)["Failed"]["message"]
        later = START + timedelta(seconds=100)
        assert self.held(*pods[:2], now=later).status["phase"] == "Starting"  # Its quota lacks one pod.
        waits = raw_pod("worker", nodeName="", phase="Pending", age=90_000)  # For an autoscaler, or for other jobs.
        assert self.held(*pods[:2], waits, now=later).status["phase"] == "Starting"
        assert self.held(*pods, spec={"startDeadlineSeconds": 100_000}, now=later).status["phase"] == "Starting"

    @pytest.mark.parametrize("again", [{}, {"adapter": {"targetModules": []}}])
    def test_active_deadline_during_the_delay_and_while_no_attempt_is_possible(self, again):
        pause = condition("Running", False, "BackingOff", age=1)
        status = status_of("Restarting", "demo-7", startTime=ago(100), conditions=[pause]) | {"attempts": 6}
        job = raw_job({"activeDeadlineSeconds": 110} | again, status)
        assert decided(job).recheck_seconds == 10
        decision = decided(job, now=START + timedelta(seconds=10))
        assert (decision.status["phase"], conditions(decision)["Failed"]["reason"]) == ("Failed", "DeadlineExceeded")

    @pytest.mark.parametrize("age", [5, 300])
    def test_active_deadline_while_the_previous_attempt_still_exists(self, age):
        status = status_of(
            "Restarting", "demo-2", startTime=ago(55), conditions=[condition("Running", False, "Restarting", age=50)]
        )
        job = raw_job({"activeDeadlineSeconds": 60}, status)
        assert decided(job, gone_since(age)).recheck_seconds == 5
        assert decided(job, pods=[raw_pod("worker")]).recheck_seconds == 5

    @pytest.mark.parametrize(
        ("reason", "found"),
        [
            (
                "QuotaExceeded",
                {"refusal": Refusal("RayJob", "demo-1", 403, "Forbidden", "exceeded quota: team", START, 1)},
            ),
            ("RayJobRefused", {"refusal": Refusal("RayJob", "demo-1", 422, "Invalid", "a webhook says no", START, 1)}),
            ("NameTaken", {"owner": "someone-else"}),
            ("Invalid", {"spec": {"adapter": {"targetModules": []}}}),
        ],
    )
    def test_start_deadline_if_no_rayjob_can_be_created(self, reason, found):
        foreign = [raw_ray_job(owner=found["owner"])] if "owner" in found else []
        refusal = found.get("refusal")

        def after(seconds, status):
            seen = replace(refusal, at=START + timedelta(seconds=seconds)) if refusal else None
            job = raw_job({"startDeadlineSeconds": 60} | found.get("spec", {}), status)
            return decided(job, *foreign, refusal=seen, now=START + timedelta(seconds=seconds))

        # It was in a queue for hours, which does not count.
        status = status_of("Pending", conditions=[condition("Running", False, "Queued", age=7200)])
        first = after(0, status)
        assert (first.status["phase"], conditions(first)["Running"]["reason"]) == ("Pending", reason)
        later = after(58, first.status)
        assert (later.status, later.recheck_seconds) == (None, 2)
        last = after(60, first.status)
        assert (last.status["phase"], conditions(last)["Failed"]["reason"]) == ("Failed", "StartDeadlineExceeded")
        assert conditions(first)["Running"]["message"] in conditions(last)["Failed"]["message"]

    def test_start_deadline_while_a_rayjob_stays(self):
        status = status_of(
            "Pending", "demo-2", waitingSince=ago(60), conditions=[condition("Running", False, "RayJobStays", age=90)]
        )
        decision = decided(raw_job({"startDeadlineSeconds": 60}, status), gone_since(80))
        assert conditions(decision)["Failed"]["reason"] == "StartDeadlineExceeded"
        assert "example.com/hold" in conditions(decision)["Failed"]["message"]
        resumed = decided(raw_job({"startDeadlineSeconds": 60}, status | {"phase": "Suspending"}), gone_since(80))
        assert (resumed.status["phase"], resumed.recheck_seconds) == ("Pending", 30)
        assert resumed.status["waitingSince"] == ago(0)

    def test_ttl(self):
        job = raw_job({"ttlSecondsAfterFinished": 100}, status_of("Succeeded", completionTime=ago(90)))
        assert decided(job).recheck_seconds == 10
        assert decided(job, now=START + timedelta(seconds=10)).actions == (DeleteJob(),)
        assert decided(raw_job(status=status_of("Succeeded", completionTime=ago(90)))).recheck_seconds is None
