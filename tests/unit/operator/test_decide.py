"""Transitions of a job's life that are not an attempt's own, as one look and what is decided."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import timedelta

import pytest

from lorarl_operator import parse
from lorarl_operator.decide import decide
from lorarl_operator.decision import AddFinalizer, Create, Delete, DeleteJob, RemoveFinalizer, Want
from lorarl_operator.models import Refusal
from unit.operator.decisions import DELETE, QUEUE, RUNNING, conditions, decided, gone_since, running_status, status_of
from unit.operator.observed_world import SETTINGS, SPEC, START, ago, condition, observed, raw_job, raw_pod, raw_ray_job


class TestQueue:
    def queued(self, **status):
        ray_job = raw_ray_job(suspend=True, **status)
        ray_job["metadata"]["labels"] |= QUEUE
        return ray_job

    def test_it_waits_for_its_turn(self):
        decision = decided(raw_job(labels=QUEUE), self.queued())
        assert decision.status["phase"] == "Pending"
        assert conditions(decision)["Running"]["reason"] == "Queued"
        assert "startTime" not in decision.status
        assert decision.wants_evidence is Want.WORKLOAD

    def test_a_queue_that_takes_its_machines_back_is_counted_once_and_the_rayjob_stays(self):
        decision = decided(
            raw_job(status=running_status(), labels=QUEUE), self.queued(jobDeploymentStatus="Suspending")
        )
        assert decision.status["preemptions"] == 1
        assert decision.status["phase"] == "Pending"
        assert decision.actions == ()
        again = decided(raw_job(status=decision.status, labels=QUEUE), self.queued(jobDeploymentStatus="Suspended"))
        assert again.status is None

    def test_it_goes_on_by_itself(self):
        status = status_of(
            "Pending", conditions=[condition("Running", False, "Queued", "waits for its turn in queue research")]
        )
        decision = decided(raw_job(status=status, labels=QUEUE), raw_ray_job(**RUNNING))
        assert decision.status["phase"] == "Running"
        assert decision.status["startTime"] == ago(0)

    def test_pods_of_the_cluster_before_are_not_those_of_this_one(self):
        old = raw_pod("worker", deletionTimestamp=ago(-60), deletionGracePeriodSeconds=120)
        old["metadata"]["labels"]["ray.io/cluster"] = "the-one-before"
        decision = decided(raw_job(status=running_status(), labels=QUEUE), raw_ray_job(**RUNNING), pods=[old])
        assert decision.status is None
        assert decision.actions == ()


def test_a_rayjob_that_somebody_suspended_was_not_taken_by_a_queue():
    decision = decided(
        raw_job(status=running_status()), raw_ray_job(suspend=True, jobDeploymentStatus="ValidationFailed")
    )
    assert (decision.status["phase"], decision.status["preemptions"]) == ("Pending", 1)
    assert conditions(decision)["Disrupted"]["message"].startswith(
        "RayJob demo-1 was suspended by something that is no queue"
    )
    (event,) = decision.events
    assert "delete it (kubectl delete rayjob), and it is made again" in event.message


def test_absurd_numbers_in_a_status_are_not_counted_on():
    status = status_of("Starting", f"demo-{'9' * 200}", attempts=2**62, preemptions=2**62)
    decision = decided(raw_job(status=status), raw_ray_job(**RUNNING))
    assert {key: decision.status[key] for key in ("phase", "rayJobName", "attempts", "preemptions", "restarts")} == {
        "phase": "Running",
        "rayJobName": "demo-1",
        "attempts": 0,
        "preemptions": 0,
        "restarts": 0,
    }


class TestWhatTheServerRefuses:
    @pytest.mark.parametrize(
        ("code", "reason", "hint"),
        [(403, "Forbidden", "see the operator's rights"), (422, "Invalid", "correct what it names, in a new job")],
    )
    def test_it_is_told_what_to_do(self, code, reason, hint):
        refusal = Refusal("ConfigMap", "lorarl-demo", code, reason, "it says why", START, 1)
        assert f"it says why; {hint}" in conditions(decided(raw_job(), refusal=refusal))["Running"]["message"]


class TestSuspension:
    def test_a_job_that_starts_suspended_has_no_objects(self):
        decision = decided(raw_job({"suspend": True}))
        assert decision.status["phase"] == "Suspended"
        assert decision.actions == ()

    def test_the_status_says_so_before_the_rayjob_goes(self):
        decision = decided(raw_job({"suspend": True}, running_status()), raw_ray_job(**RUNNING))
        assert decision.status["phase"] == "Suspending"
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)
        assert "startTime" not in decision.status

    def test_it_is_suspended_when_the_pods_are_gone(self):
        pods = [raw_pod("worker", deletionTimestamp=ago(-60), deletionGracePeriodSeconds=120)]
        suspending = raw_job({"suspend": True}, status_of("Suspending"))
        assert decided(suspending, pods=pods).status["phase"] == "Suspending"
        assert decided(suspending).status["phase"] == "Suspended"

    def test_an_operator_killed_in_between_goes_on(self):
        decision = decided(raw_job({"suspend": True}, status_of("Suspending")), raw_ray_job(**RUNNING))
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)

    def test_resumed_it_is_the_next_attempt(self):
        decision = decided(
            raw_job({"suspend": False}, status_of("Suspended", conditions=[condition("Suspended", True)]))
        )
        assert decision.actions[-1].manifest["metadata"]["name"] == "demo-2"
        seen = decided(
            raw_job(status=status_of("Suspended", conditions=[condition("Suspended", True)])), raw_ray_job(2, age=0)
        )
        assert (seen.status["phase"], seen.status["rayJobName"], seen.status["startTime"]) == (
            "Starting",
            "demo-2",
            ago(0),
        )
        assert conditions(seen)["Suspended"]["status"] == "False"

    def test_resumed_while_it_is_still_suspending(self):
        decision = decided(raw_job(status=status_of("Suspending")), raw_ray_job(1, **RUNNING))
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)

    @pytest.mark.parametrize(
        "job", [raw_job({"suspend": True}, status_of("Suspending")), raw_job(status=status_of("Suspending"))]
    )
    def test_a_rayjob_that_does_not_go_is_named_with_its_finalizers(self, job):
        assert not decided(job, gone_since(19), now=START).events
        decision = decided(job, gone_since(20))
        assert conditions(decision)["Running"]["reason"] == "RayJobStays"
        assert (
            "RayJob demo-1 is being deleted, but its finalizers hold it: example.com/hold"
            in conditions(decision)["Running"]["message"]
        )
        assert [event.reason for event in decision.events] == ["RayJobStays"]
        later = decided(job | {"status": decision.status}, gone_since(50), now=START)
        assert (later.status, later.actions) == (None, ())
        assert later.recheck_seconds in (20, 30)
        (made,) = (each for each in decided(raw_job(status=decision.status)).actions if isinstance(each, Create))
        assert made.manifest["metadata"]["name"] == "demo-2"

    def test_a_job_that_succeeded_before_it_could_be_suspended(self):
        done = raw_ray_job(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")
        assert decided(raw_job({"suspend": True}, status_of("Suspending")), done).status["phase"] == "Succeeded"

    def test_our_own_deletion_is_no_preemption(self):
        assert decided(raw_job({"suspend": True}, status_of("Suspending"))).status["preemptions"] == 0

    def test_a_rayjob_lost_before_the_wish_was_seen_is_counted(self):
        decision = decided(raw_job({"suspend": True}, running_status()))
        assert (decision.status["preemptions"], decision.status["phase"]) == (1, "Suspended")

    def test_an_attempt_that_no_status_has_named_yet_is_not_resumed(self):
        decision = decided(raw_job({"suspend": True}), raw_ray_job(1))
        assert decision.status["rayJobName"] == "demo-1"

    def test_a_failure_seen_together_with_the_wish_is_counted(self):
        failed = raw_ray_job(jobDeploymentStatus="Failed", endTime=ago(30))
        decision = decided(raw_job({"suspend": True}, running_status()), failed)
        assert (decision.status["attempts"], decision.status["phase"]) == (1, "Suspending")


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

    @pytest.mark.parametrize("again", [{}, {"adapter": {"targetModules": []}}])
    def test_active_deadline_in_the_pause_before_the_next_attempt_and_while_there_can_be_none(self, again):
        pause = condition("Running", False, "BackingOff", age=1)
        status = status_of("Restarting", "demo-7", startTime=ago(100), conditions=[pause]) | {"attempts": 6}
        job = raw_job({"activeDeadlineSeconds": 110} | again, status)
        assert decided(job).recheck_seconds == 10
        decision = decided(job, now=START + timedelta(seconds=10))
        assert (decision.status["phase"], conditions(decision)["Failed"]["reason"]) == ("Failed", "DeadlineExceeded")

    @pytest.mark.parametrize("age", [5, 300])
    def test_active_deadline_while_something_of_the_attempt_before_is_still_there(self, age):
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
            ("NameTaken", {"owner": "somebody"}),
            ("Invalid", {"spec": {"adapter": {"targetModules": []}}}),
        ],
    )
    def test_start_deadline_where_no_rayjob_can_be_made(self, reason, found):
        foreign = [raw_ray_job(owner=found["owner"])] if "owner" in found else []
        refusal = found.get("refusal")

        def after(seconds, status):
            seen = replace(refusal, at=START + timedelta(seconds=seconds)) if refusal else None
            job = raw_job({"startDeadlineSeconds": 60} | found.get("spec", {}), status)
            return decided(job, *foreign, refusal=seen, now=START + timedelta(seconds=seconds))

        # It was in a queue for hours, which is not held against it.
        status = status_of("Pending", conditions=[condition("Running", False, "Queued", age=7200)])
        first = after(0, status)
        assert (first.status["phase"], conditions(first)["Running"]["reason"]) == ("Pending", reason)
        later = after(58, first.status)
        assert (later.status, later.recheck_seconds) == (None, 2)
        last = after(60, first.status)
        assert (last.status["phase"], conditions(last)["Failed"]["reason"]) == ("Failed", "StartDeadlineExceeded")
        assert conditions(first)["Running"]["message"] in conditions(last)["Failed"]["message"]

    def test_start_deadline_while_a_rayjob_stays(self):
        status = status_of("Pending", "demo-2", conditions=[condition("Running", False, "RayJobStays", age=60)])
        decision = decided(raw_job({"startDeadlineSeconds": 60}, status), gone_since(80))
        assert conditions(decision)["Failed"]["reason"] == "StartDeadlineExceeded"
        assert "example.com/hold" in conditions(decision)["Failed"]["message"]
        resumed = decided(raw_job({"startDeadlineSeconds": 60}, status | {"phase": "Suspending"}), gone_since(80))
        assert (resumed.status["phase"], resumed.recheck_seconds) == ("Pending", 30)
        assert conditions(resumed)["Running"]["lastTransitionTime"] == ago(0)

    def test_ttl(self):
        job = raw_job({"ttlSecondsAfterFinished": 100}, status_of("Succeeded", completionTime=ago(90)))
        assert decided(job).recheck_seconds == 10
        assert decided(job, now=START + timedelta(seconds=10)).actions == (DeleteJob(),)
        assert decided(raw_job(status=status_of("Succeeded", completionTime=ago(90)))).recheck_seconds is None


class TestSpecChanges:
    def test_new_steps_reach_a_running_trainer_before_the_status_says_so(self):
        job = raw_job({"trainer": {"steps": 500}}, running_status(), generation=2)
        decision = decided(job, raw_ray_job(**RUNNING))
        (config,) = decision.prepare
        assert '"steps": 500' in config.manifest["data"]["job.yaml"]
        assert decision.status["observedGeneration"] == 2

    def test_a_change_that_is_not_valid_never_reaches_it(self):
        job = raw_job({"trainer": {"steps": 0}}, running_status(), generation=2)
        decision = decided(job, raw_ray_job(**RUNNING))
        assert decision.prepare == ()
        assert "spec.trainer.steps" in decision.events[-1].message

    @pytest.mark.parametrize(
        "spec",
        [
            {"adapter": {"rank": "eight"}},
            {"cluster": {"podTemplateOverrides": {"worker": {"spec": {"containers": [{"image": "x"}]}}}}},
        ],
    )
    def test_an_invalid_job_says_what_is_wrong(self, spec):
        decision = decided(raw_job(spec))
        assert decision.status["phase"] == "Pending"
        assert conditions(decision)["Running"]["reason"] == "Invalid"
        assert "spec." in conditions(decision)["Running"]["message"]
        assert decision.actions == ()
        assert decision.recheck_seconds is None

    @pytest.mark.parametrize(
        "spec", [{}, {"suspend": "yes", "backoffLimit": "x", "checkpoint": 3, "activeDeadlineSeconds": True}]
    )
    @pytest.mark.parametrize("phase", ["", "Running", "Suspended", "Succeeded", "Restarting", "Nonsense"])
    def test_whatever_etcd_holds_is_no_crash(self, spec, phase):
        job = raw_job() | {
            "spec": spec,
            "status": {"phase": phase, "rayJobName": "other", "conditions": [{}], "failure": 7},
        }
        for ray_jobs in ([], [raw_ray_job(**RUNNING)], [raw_ray_job(jobDeploymentStatus="Failed", endTime="nonsense")]):
            decide(observed(job, *ray_jobs), START, SETTINGS)


class TestStepsThatTheTrainingNeverSaw:
    """It ended at step 200, and `trainer.steps` was raised to 400 when it was about to."""

    ENDED = raw_ray_job(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")
    ADAPTER = "s3://team/adapters/demo/iter_0000200/lora_adapter"

    def ended(self, phase="Running", step=200, total=200, spec=None, **rest):
        status = running_status(step=step, totalSteps=total, adapter={"uri": self.ADAPTER}) | {"phase": phase, **rest}
        return raw_job({"trainer": {"steps": 400}} | (spec or {}), status, generation=2)

    def test_the_next_attempt_makes_them_and_nothing_is_counted(self):
        decision = decided(self.ended(), self.ENDED)
        assert (decision.status["phase"], decision.status["rayJobName"], decision.status["restarts"]) == (
            "Restarting",
            "demo-2",
            0,
        )
        assert "completionTime" not in decision.status
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)
        assert decision.recheck_seconds == 1
        (event,) = decision.events
        assert (event.type, event.reason) == ("Normal", "MoreSteps")
        assert "trainer.steps is 400 now, and attempt 2 makes the rest" in event.message
        made = (
            decided(self.ended() | {"status": decision.status}, now=START + timedelta(seconds=1)).actions[-1].manifest
        )
        assert made["metadata"]["name"] == "demo-2"

    def made_from(self, generation):
        ray_job = copy.deepcopy(self.ENDED)
        ray_job["metadata"]["annotations"]["lorarl.io/generation"] = str(generation)
        return ray_job

    def test_one_that_was_made_for_them_is_the_last_whatever_it_reported(self):
        assert decided(self.ended(), self.made_from(2)).status["phase"] == "Succeeded"

    @pytest.mark.parametrize(("step", "total"), [(400, 400), (400, 200), (450, 450), (None, None), ("200", -1)])
    def test_where_it_saw_them_or_never_said_what_it_knew_it_has_succeeded(self, step, total):
        decision = decided(self.ended(step=step, total=total), self.ENDED)
        assert decision.status["phase"] == "Succeeded"
        assert [event.reason for event in decision.events] == ["Succeeded"]

    def test_fewer_steps_are_none_that_are_left(self):
        decision = decided(self.ended(spec={"trainer": {"steps": 100}}), self.ENDED)
        assert [event.reason for event in decision.events] == ["Succeeded"]

    @pytest.mark.parametrize(
        "spec",
        [{"checkpoint": SPEC["checkpoint"] | {"resume": "Never"}}, {"adapter": {"targetModules": []}}],
        ids=["never", "invalid"],
    )
    def test_where_no_attempt_can_go_on_it_has_succeeded_and_says_what_was_left_out(self, spec):
        decision = decided(self.ended(spec=spec), self.ENDED)
        assert decision.status["phase"] == "Succeeded"
        assert [event.reason for event in decision.events] == ["Succeeded", "TooLate"]

    def test_a_suspended_job_makes_them_when_it_is_resumed(self):
        decision = decided(self.ended(spec={"suspend": True}), self.ENDED)
        assert (decision.status["phase"], decision.status["restarts"]) == ("Suspending", 0)
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)
        resumed = decided(self.ended(**decision.status))
        assert resumed.actions[-1].manifest["metadata"]["name"] == "demo-2"

    def test_a_job_that_has_ended_takes_none_and_says_so_once(self):
        job = self.ended("Succeeded", completionTime=ago(5))
        decision = decided(job, self.ENDED)
        assert (decision.status["phase"], decision.status["observedGeneration"], decision.actions) == (
            "Succeeded",
            2,
            (),
        )
        (event,) = decision.events
        assert (event.type, event.reason) == ("Warning", "TooLate")
        assert "trainer.steps is 400 now, but the job has ended at step 200" in event.message
        assert f"adapter.initFrom: {self.ADAPTER}" in event.message
        assert not decided(job | {"status": job["status"] | decision.status}, self.ENDED).events


class TestWhatIsNotOurs:
    def test_a_foreign_rayjob_is_neither_adopted_nor_deleted(self):
        decision = decided(raw_job(), raw_ray_job(owner="somebody", **RUNNING))
        assert conditions(decision)["Running"]["reason"] == "NameTaken"
        assert decision.actions == ()
        assert decision.recheck_seconds == SETTINGS.refused_briefly_seconds

    def refusal(self, **parts):
        given = {
            "kind": "RayJob",
            "name": "demo-1",
            "code": 422,
            "reason": "Invalid",
            "message": "spec.x: unknown field",
        }
        return Refusal(**(given | {"at": START - timedelta(seconds=1), "generation": 1} | parts))

    def test_a_rayjob_that_the_api_server_refuses(self):
        decision = decided(raw_job(), refusal=self.refusal())
        assert conditions(decision)["Running"]["reason"] == "RayJobRefused"
        assert "unknown field" in conditions(decision)["Running"]["message"]
        assert decision.actions == ()

    def test_a_name_that_somebody_else_holds_is_named_and_tried_again_soon(self):
        taken = self.refusal(kind="ConfigMap", name="lorarl-demo", code=409, reason="AlreadyExists")
        decision = decided(raw_job(), refusal=taken)
        assert conditions(decision)["Running"]["reason"] == "NameTaken"
        assert (
            "ConfigMap lorarl-demo is there already and belongs to something else"
            in conditions(decision)["Running"]["message"]
        )
        assert decision.actions == ()
        assert decision.recheck_seconds == SETTINGS.refused_briefly_seconds

    def test_an_attempt_whose_manifest_cannot_be_renewed_goes_on(self):
        taken = self.refusal(kind="ConfigMap", name="lorarl-demo", code=409, reason="AlreadyExists", generation=2)
        running = {"phase": "Running", "rayJobName": "demo-1"}
        decision = decided(raw_job(status=running, generation=2), raw_ray_job(**RUNNING), refusal=taken)
        assert decision.prepare == ()
        assert decision.status["observedGeneration"] == 2
        assert "goes on with the spec as it was" in decision.events[-1].message

    def test_it_is_tried_again_later_or_when_the_spec_changes(self):
        assert decided(raw_job(), refusal=self.refusal(at=START - timedelta(seconds=31))).actions
        assert decided(raw_job(generation=2), refusal=self.refusal()).actions

    def test_quota(self):
        refusal = self.refusal(
            code=403, reason="Forbidden", message="exceeded quota: team, requested: count/rayjobs.ray.io=1"
        )
        assert conditions(decided(raw_job(), refusal=refusal))["Running"]["reason"] == "QuotaExceeded"


class TestFinalizer:
    def test_it_is_there_before_the_rayjob(self):
        assert decided(raw_job(DELETE)).actions[0] == AddFinalizer()

    def test_it_follows_the_policy(self):
        assert decided(
            raw_job(status=running_status(), finalizers=["lorarl.io/cleanup"]), raw_ray_job(**RUNNING)
        ).actions == (RemoveFinalizer(),)
        assert decided(raw_job(DELETE, running_status()), raw_ray_job(**RUNNING)).actions == (AddFinalizer(),)

    def test_parse_keeps_the_time_that_a_deletion_was_asked_for(self):
        pod = parse.pod(raw_pod(deletionTimestamp=ago(-120), deletionGracePeriodSeconds=120))
        assert (pod.deletion_asked_at, pod.gone_by) == (START, START + timedelta(seconds=120))
