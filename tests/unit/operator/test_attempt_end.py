"""The end of an attempt: whose fault it is, what is counted, and what follows."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lorarl_operator.decide import parse
from lorarl_operator.decide.decision import Delete
from unit.operator.decisions import RUNNING, conditions, decided, running_status, status_of
from unit.operator.observed_world import START, ago, condition, ended, raw_job, raw_pod, raw_ray_job


class TestAttemptEnd:
    def failed(self, **status):
        return raw_ray_job(jobDeploymentStatus="Failed", jobStatus="FAILED", endTime=ago(30), **status)

    def test_a_failure_is_counted_and_retried_after_a_delay(self):
        failure = {"reason": "BadReward", "message": "score() raised", "attempt": 1}
        decision = decided(raw_job(status=running_status(failure=failure)), self.failed())
        assert decision.status["phase"] == "Restarting"
        assert (decision.status["attempts"], decision.status["preemptions"], decision.status["restarts"]) == (1, 0, 1)
        assert decision.status["rayJobName"] == "demo-2"
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)
        assert decision.recheck_seconds == 10
        assert "score() raised" in conditions(decision)["Running"]["message"]

    def test_a_failure_reported_for_another_attempt_does_not_count(self):
        failure = {"reason": "Interrupted", "message": "SIGTERM", "attempt": 7}
        decision = decided(raw_job(status=running_status(failure=failure)), self.failed(message="exit 1"))
        assert (decision.status["attempts"], decision.status["preemptions"]) == (1, 0)

    def test_the_last_failure_ends_the_job_with_its_reason(self):
        failure = {"reason": "BadReward", "message": "score() raised", "attempt": 4}
        status = running_status(failure=failure) | {"attempts": 3, "restarts": 3, "rayJobName": "demo-4"}
        ray_job = raw_ray_job(4, jobDeploymentStatus="Failed", endTime=ago(30))
        decision = decided(raw_job(status=status), ray_job)
        assert decision.status["phase"] == "Failed"
        assert decision.status["attempts"] == 4
        assert conditions(decision)["Failed"]["reason"] == "BadReward"
        assert "score() raised" in conditions(decision)["Failed"]["message"]
        assert decision.actions == ()  # KubeRay's rules delete the workers. The head keeps its logs.

    def test_no_retry_with_backoff_limit_0(self):
        decision = decided(raw_job({"backoffLimit": 0}, running_status()), self.failed())
        assert decision.status["phase"] == "Failed"

    @pytest.mark.parametrize(("failures", "seconds"), [(1, 10), (2, 20), (3, 40), (6, 320), (7, 360), (500, 360)])
    def test_the_delay_doubles_up_to_six_minutes(self, failures, seconds):
        status = status_of("Restarting", "demo-9", conditions=[condition("Running", False, "BackingOff", age=0)])
        waiting = raw_job({"backoffLimit": 1000}, status | {"attempts": failures})
        assert decided(waiting).recheck_seconds == seconds
        assert (
            decided(waiting, now=START + timedelta(seconds=seconds)).actions[-1].manifest["metadata"]["name"]
            == "demo-9"
        )

    def test_a_clock_that_was_far_ahead_delays_nothing(self):
        status = status_of(
            "Restarting", "demo-2", conditions=[condition("Running", False, "BackingOff", age=-3600)]
        ) | {"attempts": 1}
        assert decided(raw_job(status=status)).actions

    @pytest.mark.parametrize(
        ("fruitless", "lived", "seconds"),
        [(0, 5, 1), (1, 5, 2), (2, 5, 4), (5, 5, 32), (6, 5, 60), (500, 5, 60), (500, 700, 1)],
    )
    def test_preemptions_in_a_row_without_progress_wait_longer(self, fruitless, lived, seconds):
        began = condition("Running", True, "Running", age=lived)
        counted = {"preemptions": 1000, "preemptionsWithoutProgress": fruitless}
        unlimited = {"maxPreemptionsWithoutProgress": 1000}
        decision = decided(raw_job(unlimited, status_of("Running", conditions=[began]) | counted))
        assert decision.recheck_seconds == seconds
        restarting = raw_job(unlimited, decision.status)
        assert decided(restarting).recheck_seconds == seconds
        assert decided(restarting, now=START + timedelta(seconds=seconds)).actions

    def test_a_rayjob_that_someone_else_deleted_is_a_preemption(self):
        decision = decided(raw_job(status=running_status()))
        assert decision.status["preemptions"] == 1
        assert conditions(decision)["Disrupted"]["reason"] == "RayJobDeleted"

    def test_a_rayjob_that_is_being_deleted_is_not_deleted_twice(self):
        ray_job = raw_ray_job(**RUNNING)
        ray_job["metadata"]["deletionTimestamp"] = ago(0)
        decision = decided(raw_job(status=running_status()), ray_job)
        assert decision.status["preemptions"] == 1
        assert decision.actions == ()

    def test_a_cluster_with_two_heads_is_a_preemption(self):
        starting = raw_job({"backoffLimit": 0}, status_of("Starting"))
        heads = [raw_pod("head", name="demo-head-a"), raw_pod("head", name="demo-head-b", age=5)]
        decision = decided(starting, raw_ray_job(jobDeploymentStatus="Initializing"), pods=heads)
        assert decision.status["phase"] == "Restarting"
        assert (decision.status["attempts"], decision.status["preemptions"]) == (0, 1)
        assert conditions(decision)["Disrupted"]["reason"] == "TwoHeads"
        assert "demo-head-a and demo-head-b" in conditions(decision)["Disrupted"]["message"]
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)

    @pytest.mark.parametrize(
        "second",
        [
            {"age": 1},  # News of the first head may still arrive.
            {"deletionTimestamp": ago(0)},
            {"phase": "Failed", "reason": "Evicted"},
        ],
    )
    def test_a_head_that_is_being_deleted_is_not_a_second_head(self, second):
        heads = [raw_pod("head", name="demo-head-a"), raw_pod("head", name="demo-head-b", **second)]
        ray_job = raw_ray_job(jobDeploymentStatus="Initializing")
        assert decided(raw_job(status=status_of("Starting")), ray_job, pods=heads).actions == ()

    def test_a_rayjob_that_was_never_seen_is_created_again_and_not_counted(self):
        decision = decided(
            raw_job(status=status_of("Pending", conditions=[condition("Running", False, "RayJobRefused")]))
        )
        assert decision.status is None
        assert decision.actions[-1].manifest["metadata"]["name"] == "demo-1"

    def test_an_unknown_cause_waits_for_news(self):
        ray_job = raw_ray_job(jobDeploymentStatus="Failed", endTime=ago(1))
        assert decided(raw_job(status=running_status()), ray_job) == decided(raw_job(status=running_status()), ray_job)
        decision = decided(raw_job(status=running_status()), ray_job)
        assert decision.status is None
        assert decision.recheck_seconds == 2

    @pytest.mark.parametrize(
        ("what", "counters", "reason"),
        [
            (
                {"conditions": [condition("DisruptionTarget", True, "EvictionByEvictionAPI", "drained")]},
                (0, 1),
                "EvictionByEvictionAPI",
            ),
            ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, (0, 1), "Evicted"),
            ({"deletionTimestamp": ago(-110), "deletionGracePeriodSeconds": 120}, (0, 1), "PodDeleted"),
            ({"containerStatuses": ended("worker", 137, "OOMKilled")}, (1, 0), "OutOfMemory"),
            ({"containerStatuses": ended("worker", 1, message="Segfault")}, (1, 0), "WorkerExited"),
        ],
    )
    def test_a_worker_that_is_lost_ends_the_attempt(self, what, counters, reason):
        pods = [raw_pod("head", conditions=[condition("Ready", True)]), raw_pod("worker", **what)]
        decision = decided(raw_job(status=running_status()), raw_ray_job(**RUNNING), pods=pods)
        assert (decision.status["attempts"], decision.status["preemptions"]) == counters
        assert reason in conditions(decision)["Running"]["message"]
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)

    @pytest.mark.parametrize(
        ("code", "failure", "phase", "message"),
        [
            (
                1,
                {"reason": "StorageFailed", "message": "There is no bucket", "attempt": 1},
                "Failed",
                "There is no bucket",
            ),
            (
                1,
                {"reason": "StorageFailed", "message": "an older one", "attempt": 0},
                "Failed",
                "exit code 1 at its start. Its last output: x.",
            ),
            (1, {"reason": "Interrupted", "message": "SIGTERM", "attempt": 1}, "Failed", "SIGTERM"),
            (0, None, "Succeeded", "Training finished"),
        ],
    )
    def test_a_training_that_ends_before_kuberay_sees_it_run(self, code, failure, phase, message):
        """KubeRay would wait forever: the head's pod is never ready again."""
        head = raw_pod("head", containerStatuses=ended("job-submitter", code, message="x", age=5))
        job = raw_job(
            {"backoffLimit": 0}, status_of("Starting", startTime=ago(50), **({"failure": failure} if failure else {}))
        )
        decision = decided(job, raw_ray_job(jobDeploymentStatus="Initializing"), pods=[head])
        assert decision.status["phase"] == phase
        assert message in conditions(decision)["Running"]["message"]
        # It has just ended: the trainer's own report may still arrive.
        head = raw_pod("head", containerStatuses=ended("job-submitter", code, age=1))
        assert decided(job, raw_ray_job(jobDeploymentStatus="Initializing"), pods=[head]).status["phase"] == "Starting"
        # If KubeRay has seen it run, it also sees its end.
        assert decided(raw_job(status=running_status()), raw_ray_job(**RUNNING), pods=[head]).actions == ()

    def test_a_container_that_cannot_be_created_is_reported_with_the_fix(self):
        head = raw_pod(
            "head", containerStatuses=ended("head", 128, "StartError", 'exec: "/bin/bash": no such file or directory')
        )
        job = raw_job({"backoffLimit": 0}, status_of("Starting"))
        decision = decided(job, raw_ray_job(jobDeploymentStatus="Initializing"), pods=[head])
        failed = conditions(decision)["Failed"]
        assert failed["reason"] == "ContainerRefused"
        assert 'cannot be created: exec: "/bin/bash": no such file or directory. Correct the image' in failed["message"]

    def test_workers_that_exit_because_the_heads_machine_is_lost(self):
        pods = [
            raw_pod("head", conditions=[condition("Ready", False)]),
            raw_pod("worker", containerStatuses=ended("worker", 1)),
        ]
        decision = decided(raw_job(status=running_status()), raw_ray_job(**RUNNING), pods=pods)
        assert conditions(decision)["Disrupted"]["reason"] == "HeadLost"

    @pytest.mark.parametrize(
        ("what", "counters"),
        [
            ({"containerStatuses": ended("worker", 137, "OOMKilled"), "deletionTimestamp": ago(1)}, (1, 0)),
            ({"deletionTimestamp": ago(10), "deletionGracePeriodSeconds": 0}, (0, 1)),
        ],
    )
    def test_a_pod_that_kuberay_has_already_replaced_says_why(self, what, counters):
        pods = [raw_pod("head", conditions=[condition("Ready", True)]), raw_pod("worker", name="new")]
        departed = (parse.pod(raw_pod("worker", **what)),)
        decision = decided(raw_job(status=running_status()), raw_ray_job(**RUNNING), pods=pods, departed=departed)
        assert (decision.status["attempts"], decision.status["preemptions"]) == counters

    def test_an_exit_in_the_second_of_the_deletion_may_be_kuberays_clean_up(self):
        """Ray exits with 1 at SIGTERM, and another watch reports that the RayJob is complete."""
        worker = raw_pod(
            "worker", containerStatuses=ended("worker", 1), deletionTimestamp=ago(-119), deletionGracePeriodSeconds=120
        )
        decision = decided(raw_job(status=running_status()), raw_ray_job(**RUNNING), pods=[worker])
        assert (decision.status, decision.recheck_seconds) == (None, 2)
        done = raw_ray_job(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")
        assert decided(raw_job(status=running_status()), done, pods=[worker]).status["phase"] == "Succeeded"
        worker = raw_pod(
            "worker",
            containerStatuses=ended("worker", 1, age=4),
            deletionTimestamp=ago(-116),
            deletionGracePeriodSeconds=120,
        )
        assert decided(raw_job(status=running_status()), raw_ray_job(**RUNNING), pods=[worker]).status["attempts"] == 1

    def test_a_pod_that_was_replaced_before_anything_ran_costs_nothing(self):
        departed = (parse.pod(raw_pod("worker", deletionTimestamp=ago(60), deletionGracePeriodSeconds=0)),)
        status = status_of(
            "Running",
            startTime=ago(90),
            conditions=[condition("Running", True, "Running", "Attempt 1 is training.", age=30)],
        )
        assert decided(raw_job(status=status), raw_ray_job(**RUNNING), departed=departed).actions == ()
        starting = raw_job(status=status_of("Starting", startTime=ago(90)))
        assert decided(starting, raw_ray_job(**RUNNING), departed=departed).status["phase"] == "Running"

    def test_a_head_that_exits_at_once_and_is_deleted(self):
        departed = (parse.pod(raw_pod("head", containerStatuses=ended("head", 1), deletionTimestamp=ago(1))),)
        decision = decided(
            raw_job(status=status_of("Starting")), raw_ray_job(jobDeploymentStatus="Initializing"), departed=departed
        )
        assert decision.status["attempts"] == 1

    @pytest.mark.parametrize(
        "left_alone",
        [
            {"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"},
            {"jobDeploymentStatus": "Failed", "message": "Ray head pod not found."},
        ],
    )
    def test_workers_that_kuberay_never_removes_are_deleted_with_their_rayjob(self, left_alone):
        failure = {"reason": "BadReward", "message": "x", "attempt": 1}
        job = raw_job({"backoffLimit": 0}, running_status(failure=failure))
        decision = decided(job, raw_ray_job(endTime=ago(30), **left_alone))
        assert decision.status["phase"] == "Failed"
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)

    def test_a_queue_may_have_just_deleted_the_pod(self):
        pods = [raw_pod("worker", deletionTimestamp=ago(-119), deletionGracePeriodSeconds=120)]
        decision = decided(raw_job(status=running_status()), raw_ray_job(**RUNNING), pods=pods)
        assert decision.status is None
        assert decision.recheck_seconds == 2

    def test_an_eviction_after_the_end_is_not_its_cause(self):
        evicted = {
            "conditions": [condition("DisruptionTarget", True, "EvictionByEvictionAPI")],
            "deletionGracePeriodSeconds": 120,
        }
        failure = {"reason": "BadReward", "message": "x", "attempt": 1}
        after, before = ({**evicted, "deletionTimestamp": ago(-120 + seconds)} for seconds in (20, 40))
        assert (
            decided(raw_job(status=running_status(failure=failure)), self.failed(), pods=[raw_pod(**after)]).status[
                "attempts"
            ]
            == 1
        )
        assert (
            decided(raw_job(status=running_status(failure=failure)), self.failed(), pods=[raw_pod(**before)]).status[
                "preemptions"
            ]
            == 1
        )

    def test_kuberays_own_clean_up_is_not_a_disruption(self):
        pods = [raw_pod("worker", deletionTimestamp=ago(-90), deletionGracePeriodSeconds=120)]
        failure = {"reason": "BadReward", "message": "x", "attempt": 1}
        assert (
            decided(raw_job(status=running_status(failure=failure)), self.failed(), pods=pods).status["attempts"] == 1
        )
        done = raw_ray_job(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")
        assert decided(raw_job(status=running_status()), done, pods=pods).status["phase"] == "Succeeded"

    def test_a_worker_that_kuberay_ended_after_the_training_is_not_its_cause(self):
        ended_at_its_deletion = {"deletionTimestamp": ago(-90), "deletionGracePeriodSeconds": 120}
        for age, message in ((30, "the entrypoint failed"), (31, "WorkerExited")):
            worker = raw_pod("worker", containerStatuses=ended("worker", 1, age=age), **ended_at_its_deletion)
            failed = raw_ray_job(
                jobDeploymentStatus="Failed", jobStatus="FAILED", endTime=ago(33), message="the entrypoint failed"
            )
            assert (
                message
                in conditions(decided(raw_job(status=running_status()), failed, pods=[worker]))["Running"]["message"]
            )

    def test_a_stopped_ray_job_has_not_succeeded(self):
        ray_job = raw_ray_job(jobDeploymentStatus="Complete", jobStatus="STOPPED", endTime=ago(30))
        assert "Stopped" in conditions(decided(raw_job(status=running_status()), ray_job))["Running"]["message"]

    def test_a_head_that_is_gone_is_a_preemption(self):
        decision = decided(raw_job(status=running_status()), self.failed(message="Ray head pod not found."))
        assert decision.status["preemptions"] == 1

    def test_of_a_long_output_the_end_is_told(self):
        """It has the cause, and an Event has 1,024 characters. The kubelet keeps 2,048 of the log."""
        output = "Traceback (most recent call last):\n" + "  File somewhere\n" * 110 + "RuntimeError: no room"
        head = raw_pod("head", containerStatuses=ended("head", 1, message=output, age=5))
        decision = decided(raw_job(status=running_status()), raw_ray_job(**RUNNING), pods=[head])
        (event,) = decision.events
        assert "RuntimeError: no room" in event.message[:1024]
        assert "Its last output: ...   File somewhere\n" in event.message
        assert "Traceback" not in event.message

    def test_a_head_that_exits_at_once_is_counted_with_its_last_output(self):
        pods = [raw_pod("head", containerStatuses=ended("head", 127, message="ray: command not found"))]
        decision = decided(
            raw_job(status=status_of("Starting")), raw_ray_job(jobDeploymentStatus="Initializing"), pods=pods
        )
        assert decision.status["attempts"] == 1
        assert "ray: command not found" in conditions(decision)["Running"]["message"]
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)

    def test_a_pod_lost_before_anything_ran_is_left_to_kuberay(self):
        pods = [raw_pod("worker", conditions=[condition("DisruptionTarget", True, "PreemptionByScheduler")])]
        decision = decided(
            raw_job(status=status_of("Starting", startTime=ago(9))),
            raw_ray_job(jobDeploymentStatus="Initializing"),
            pods=pods,
        )
        assert decision.actions == ()
        assert decision.status["restarts"] == 0

    def test_the_next_attempt_waits_for_the_old_rayjob_and_its_pods(self):
        status = status_of("Restarting", "demo-2", conditions=[condition("Running", False, "Restarting", age=60)])
        assert decided(raw_job(status=status), raw_ray_job(1)).actions == (Delete("RayJob", "demo-1", "ray-1"),)
        leaving = raw_pod("worker", 1, deletionTimestamp=ago(-20), deletionGracePeriodSeconds=120)
        decision = decided(raw_job(status=status), pods=[leaving])
        assert decision.actions == ()
        assert decision.recheck_seconds == 30
        on_a_lost_node = raw_pod("worker", 1, deletionTimestamp=ago(11), deletionGracePeriodSeconds=120)
        assert (
            decided(raw_job(status=status), pods=[on_a_lost_node]).actions[-1].manifest["metadata"]["name"] == "demo-2"
        )

    def test_a_replacement_that_never_started_delays_nothing(self):
        status = status_of("Restarting", "demo-2", conditions=[condition("Running", False, "Restarting", age=60)])
        replacement = raw_pod("worker", 1, deletionTimestamp=ago(-100), deletionGracePeriodSeconds=120, phase="Pending")
        assert decided(raw_job(status=status), pods=[replacement]).actions
        del replacement["metadata"]["deletionTimestamp"]
        assert not decided(raw_job(status=status), pods=[replacement]).actions

    def test_a_later_rayjob_than_the_status_knows_is_followed(self):
        decision = decided(raw_job(status=status_of("Restarting", "demo-2")), raw_ray_job(3, **RUNNING))
        assert decision.status["rayJobName"] == "demo-3"
        assert decision.actions == ()
