"""An attempt's transitions, from its first objects to its end, as one look and what is decided."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lorarl_operator import parse
from lorarl_operator.decision import Apply, Create, Delete
from lorarl_operator.models import Refusal
from unit.operator.decisions import RUNNING, conditions, decided, kinds, running_status, status_of
from unit.operator.observed_world import START, World, ago, condition, ended, raw_job, raw_pod, raw_ray_job


class TestTheFirstAttempt:
    def test_what_its_pods_need_then_the_rayjob_and_no_status_yet(self):
        decision = decided(raw_job())
        assert decision.status is None
        assert kinds(decision.actions) == ["ServiceAccount", "ConfigMap", "RayJob"]
        assert [type(action) for action in decision.actions] == [Apply, Apply, Create]
        assert decision.actions[-1].manifest["metadata"]["name"] == "demo-1"

    @pytest.mark.parametrize("suspended", [False, True])
    def test_its_trainer_is_granted_its_right_before_the_status_names_its_rayjob(self, suspended):
        decision = decided(raw_job(), raw_ray_job(age=1, suspend=suspended))
        assert kinds(decision.prepare) == ["Role", "RoleBinding"]
        assert decision.status["rayJobName"] == "demo-1"
        assert decided(raw_job(status=decision.status), raw_ray_job(age=1, suspend=suspended)).prepare == ()

    def test_a_right_that_is_refused_is_told_and_granted_later(self):
        refusal = Refusal(
            "Role", "lorarl-demo", 403, "Forbidden", "attempting to grant RBAC permissions not held", START, 1
        )
        decision = decided(raw_job(), raw_ray_job(age=1), refusal=refusal)
        assert (decision.status["phase"], conditions(decision)["Running"]["reason"]) == ("Pending", "ObjectRefused")
        later = decided(raw_job(status=decision.status), raw_ray_job(age=1))
        assert kinds(later.prepare) == ["Role", "RoleBinding"]
        assert later.status["phase"] == "Starting"

    def test_of_a_later_attempt_all_is_made_sure_of_before_its_rayjob(self):
        status = {"phase": "Restarting", "rayJobName": "demo-2", "preemptions": 1}
        assert kinds(decided(raw_job(status=status)).actions) == [
            "ServiceAccount",
            "ConfigMap",
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
        assert decision.actions == ()  # its head stays for its logs

    def test_an_undisturbed_life_takes_at_most_12_writes_and_then_none(self):
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
    def test_nothing_changes_nothing_is_written(self, suspend):
        world = World({"suspend": suspend})
        world.settle()
        world.bring_up()
        world.settle()
        writes = world.writes
        for _ in range(50):
            world.now += timedelta(minutes=1)
            world.settle()
        assert world.writes == writes


class TestTheEndOfAnAttempt:
    def failed(self, **status):
        return raw_ray_job(jobDeploymentStatus="Failed", jobStatus="FAILED", endTime=ago(30), **status)

    def test_a_failure_is_counted_and_retried_after_a_while(self):
        failure = {"reason": "BadReward", "message": "score() raised", "attempt": 1}
        decision = decided(raw_job(status=running_status(failure=failure)), self.failed())
        assert decision.status["phase"] == "Restarting"
        assert (decision.status["attempts"], decision.status["preemptions"], decision.status["restarts"]) == (1, 0, 1)
        assert decision.status["rayJobName"] == "demo-2"
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)
        assert decision.recheck_seconds == 10
        assert "score() raised" in conditions(decision)["Running"]["message"]

    def test_a_failure_reported_for_another_attempt_is_not_this_ones(self):
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
        assert decision.actions == ()  # KubeRay's rules take the workers away; the head keeps its logs

    def test_no_retry_with_backoff_limit_0(self):
        decision = decided(raw_job({"backoffLimit": 0}, running_status()), self.failed())
        assert decision.status["phase"] == "Failed"

    @pytest.mark.parametrize(("failures", "seconds"), [(1, 10), (2, 20), (3, 40), (6, 320), (7, 360), (500, 360)])
    def test_the_wait_doubles_up_to_six_minutes(self, failures, seconds):
        status = status_of("Restarting", "demo-9", conditions=[condition("Running", False, "BackingOff", age=0)])
        waiting = raw_job({"backoffLimit": 1000}, status | {"attempts": failures})
        assert decided(waiting).recheck_seconds == seconds
        assert (
            decided(waiting, now=START + timedelta(seconds=seconds)).actions[-1].manifest["metadata"]["name"]
            == "demo-9"
        )

    def test_a_clock_that_was_far_ahead_holds_nothing_up(self):
        status = status_of(
            "Restarting", "demo-2", conditions=[condition("Running", False, "BackingOff", age=-3600)]
        ) | {"attempts": 1}
        assert decided(raw_job(status=status)).actions

    @pytest.mark.parametrize("reason", ["Interrupted", "NodeLost"])
    def test_an_interrupted_attempt_is_not_its_fault(self, reason):
        failure = {"reason": reason, "message": "SIGTERM", "attempt": 1}
        decision = decided(raw_job({"backoffLimit": 0}, running_status(failure=failure)), self.failed())
        assert decision.status["phase"] == "Restarting"
        assert (decision.status["attempts"], decision.status["preemptions"]) == (0, 1)
        assert conditions(decision)["Disrupted"]["reason"] == reason
        assert decision.recheck_seconds == 1

    @pytest.mark.parametrize(
        ("preemptions", "lived", "seconds"),
        [(0, 5, 1), (1, 5, 2), (2, 5, 4), (5, 5, 32), (6, 5, 60), (500, 5, 60), (500, 700, 1)],
    )
    def test_preemptions_soon_after_each_other_wait_longer(self, preemptions, lived, seconds):
        began = condition("Running", True, "Running", age=lived)
        status = status_of("Running", conditions=[began]) | {"preemptions": preemptions}
        decision = decided(raw_job(status=status))
        assert decision.recheck_seconds == seconds
        restarting = raw_job(status=decision.status)
        assert decided(restarting).recheck_seconds == seconds
        assert decided(restarting, now=START + timedelta(seconds=seconds)).actions

    def test_a_rayjob_that_somebody_deleted_is_a_preemption(self):
        decision = decided(raw_job(status=running_status()))
        assert decision.status["preemptions"] == 1
        assert conditions(decision)["Disrupted"]["reason"] == "RayJobDeleted"

    def test_one_that_is_being_deleted_too_and_it_is_not_deleted_twice(self):
        ray_job = raw_ray_job(**RUNNING)
        ray_job["metadata"]["deletionTimestamp"] = ago(0)
        decision = decided(raw_job(status=running_status()), ray_job)
        assert decision.status["preemptions"] == 1
        assert decision.actions == ()

    def test_a_cluster_of_two_heads_is_given_up_and_nobody_s_fault(self):
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
            {"age": 1},  # news of the first may be on its way
            {"deletionTimestamp": ago(0)},
            {"phase": "Failed", "reason": "Evicted"},
        ],
    )
    def test_a_head_that_goes_is_no_second_one(self, second):
        heads = [raw_pod("head", name="demo-head-a"), raw_pod("head", name="demo-head-b", **second)]
        ray_job = raw_ray_job(jobDeploymentStatus="Initializing")
        assert decided(raw_job(status=status_of("Starting")), ray_job, pods=heads).actions == ()

    def test_one_that_was_never_seen_is_made_again_and_not_counted(self):
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
        ("code", "failure", "phase", "told"),
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
                "exit code 1 at its start; it said: x",
            ),
            (1, {"reason": "Interrupted", "message": "SIGTERM", "attempt": 1}, "Restarting", "SIGTERM"),
            (0, None, "Succeeded", "training has ended"),
        ],
    )
    def test_a_training_that_ends_before_kuberay_sees_it_run(self, code, failure, phase, told):
        """KubeRay waits for ever then: the head's pod is never ready again."""
        head = raw_pod("head", containerStatuses=ended("job-submitter", code, message="x", age=5))
        job = raw_job(
            {"backoffLimit": 0}, status_of("Starting", startTime=ago(50), **({"failure": failure} if failure else {}))
        )
        decision = decided(job, raw_ray_job(jobDeploymentStatus="Initializing"), pods=[head])
        assert decision.status["phase"] == phase
        assert told in conditions(decision)["Running"]["message"]
        # Just now: the trainer's own word may be on its way.
        head = raw_pod("head", containerStatuses=ended("job-submitter", code, age=1))
        assert decided(job, raw_ray_job(jobDeploymentStatus="Initializing"), pods=[head]).status["phase"] == "Starting"
        # Where KubeRay has seen it run, it sees its end.
        assert decided(raw_job(status=running_status()), raw_ray_job(**RUNNING), pods=[head]).actions == ()

    def test_a_container_that_cannot_be_made_is_told_with_the_mend(self):
        head = raw_pod(
            "head", containerStatuses=ended("head", 128, "StartError", 'exec: "/bin/bash": no such file or directory')
        )
        job = raw_job({"backoffLimit": 0}, status_of("Starting"))
        decision = decided(job, raw_ray_job(jobDeploymentStatus="Initializing"), pods=[head])
        failed = conditions(decision)["Failed"]
        assert failed["reason"] == "ContainerRefused"
        assert 'cannot be made: exec: "/bin/bash": no such file or directory; correct the image' in failed["message"]

    def test_workers_that_end_because_the_heads_machine_is_gone(self):
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
    def test_a_pod_that_kuberay_has_replaced_already_tells_why(self, what, counters):
        pods = [raw_pod("head", conditions=[condition("Ready", True)]), raw_pod("worker", name="new")]
        departed = (parse.pod(raw_pod("worker", **what)),)
        decision = decided(raw_job(status=running_status()), raw_ray_job(**RUNNING), pods=pods, departed=departed)
        assert (decision.status["attempts"], decision.status["preemptions"]) == counters

    def test_a_worker_that_ended_in_the_second_of_its_deletion_may_be_kuberays_clean_up(self):
        """Ray ends with 1 at SIGTERM, and that the RayJob is complete comes on another watch."""
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

    def test_a_pod_that_was_replaced_before_anything_ran_cost_nothing(self):
        departed = (parse.pod(raw_pod("worker", deletionTimestamp=ago(60), deletionGracePeriodSeconds=0)),)
        status = status_of(
            "Running", startTime=ago(90), conditions=[condition("Running", True, "Running", "attempt 1 trains", age=30)]
        )
        assert decided(raw_job(status=status), raw_ray_job(**RUNNING), departed=departed).actions == ()
        starting = raw_job(status=status_of("Starting", startTime=ago(90)))
        assert decided(starting, raw_ray_job(**RUNNING), departed=departed).status["phase"] == "Running"

    def test_a_head_that_ends_at_once_and_is_gone_again(self):
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
    def test_workers_that_kuberay_leaves_for_ever_go_with_their_rayjob(self, left_alone):
        failure = {"reason": "BadReward", "message": "x", "attempt": 1}
        job = raw_job({"backoffLimit": 0}, running_status(failure=failure))
        decision = decided(job, raw_ray_job(endTime=ago(30), **left_alone))
        assert decision.status["phase"] == "Failed"
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)

    def test_a_pod_deleted_just_now_may_be_a_queues_doing(self):
        pods = [raw_pod("worker", deletionTimestamp=ago(-119), deletionGracePeriodSeconds=120)]
        decision = decided(raw_job(status=running_status()), raw_ray_job(**RUNNING), pods=pods)
        assert decision.status is None
        assert decision.recheck_seconds == 2

    def test_an_eviction_after_the_end_has_not_caused_it(self):
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

    def test_kuberays_own_clean_up_is_no_disruption(self):
        pods = [raw_pod("worker", deletionTimestamp=ago(-90), deletionGracePeriodSeconds=120)]
        failure = {"reason": "BadReward", "message": "x", "attempt": 1}
        assert (
            decided(raw_job(status=running_status(failure=failure)), self.failed(), pods=pods).status["attempts"] == 1
        )
        done = raw_ray_job(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")
        assert decided(raw_job(status=running_status()), done, pods=pods).status["phase"] == "Succeeded"

    def test_a_worker_that_kuberay_ended_after_the_training_is_not_its_cause(self):
        ended_at_its_deletion = {"deletionTimestamp": ago(-90), "deletionGracePeriodSeconds": 120}
        for age, told in ((30, "the entrypoint failed"), (31, "WorkerExited")):
            worker = raw_pod("worker", containerStatuses=ended("worker", 1, age=age), **ended_at_its_deletion)
            failed = raw_ray_job(
                jobDeploymentStatus="Failed", jobStatus="FAILED", endTime=ago(33), message="the entrypoint failed"
            )
            assert (
                told
                in conditions(decided(raw_job(status=running_status()), failed, pods=[worker]))["Running"]["message"]
            )

    def test_a_stopped_ray_job_has_not_succeeded(self):
        ray_job = raw_ray_job(jobDeploymentStatus="Complete", jobStatus="STOPPED", endTime=ago(30))
        assert "Stopped" in conditions(decided(raw_job(status=running_status()), ray_job))["Running"]["message"]

    def test_a_head_that_is_gone_is_a_preemption(self):
        decision = decided(raw_job(status=running_status()), self.failed(message="Ray head pod not found."))
        assert decision.status["preemptions"] == 1

    def test_a_head_that_ends_at_once_is_counted_with_its_last_words(self):
        pods = [raw_pod("head", containerStatuses=ended("head", 127, message="ray: command not found"))]
        decision = decided(
            raw_job(status=status_of("Starting")), raw_ray_job(jobDeploymentStatus="Initializing"), pods=pods
        )
        assert decision.status["attempts"] == 1
        assert "ray: command not found" in conditions(decision)["Running"]["message"]
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)

    def test_a_pod_lost_before_anything_ran_is_kuberays_matter(self):
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

    def test_a_replacement_that_never_began_holds_nothing_up(self):
        status = status_of("Restarting", "demo-2", conditions=[condition("Running", False, "Restarting", age=60)])
        replacement = raw_pod("worker", 1, deletionTimestamp=ago(-100), deletionGracePeriodSeconds=120, phase="Pending")
        assert decided(raw_job(status=status), pods=[replacement]).actions
        del replacement["metadata"]["deletionTimestamp"]
        assert not decided(raw_job(status=status), pods=[replacement]).actions

    def test_a_later_rayjob_than_the_status_knows_is_gone_on_with(self):
        decision = decided(raw_job(status=status_of("Restarting", "demo-2")), raw_ray_job(3, **RUNNING))
        assert decision.status["rayJobName"] == "demo-3"
        assert decision.actions == ()
