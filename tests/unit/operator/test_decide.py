"""Transitions of a job: queues, suspension, spec changes, refusals, foreign objects, the finalizer."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lorarl_operator.decide import parse
from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.decision import AddFinalizer, Create, Delete, RemoveFinalizer, Want
from lorarl_operator.decide.models import Refusal
from unit.operator.decisions import (
    DELETE,
    PREEMPTED,
    QUEUE,
    REFUSED_BY_ADMISSION,
    RUNNING,
    conditions,
    decided,
    gone_since,
    running_status,
    status_of,
)
from unit.operator.observed_world import SETTINGS, START, ago, condition, observed, raw_job, raw_pod, raw_ray_job


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

    def test_a_queue_that_takes_its_machines_back_is_counted_once(self):
        decision = decided(
            raw_job(status=running_status(), labels=QUEUE),
            self.queued(jobDeploymentStatus="Suspending"),
            evidence=PREEMPTED,
        )
        assert decision.status["preemptions"] == 1
        assert decision.status["phase"] == "Pending"
        assert decision.actions == ()
        again = decided(raw_job(status=decision.status, labels=QUEUE), self.queued(jobDeploymentStatus="Suspended"))
        assert again.status is None

    def test_it_resumes_by_itself(self):
        status = status_of(
            "Pending",
            conditions=[condition("Running", False, "Queued", "The job waits for its turn in queue research.")],
        )
        decision = decided(raw_job(status=status, labels=QUEUE), raw_ray_job(**RUNNING))
        assert decision.status["phase"] == "Running"
        assert decision.status["startTime"] == ago(0)

    def test_pods_of_the_previous_cluster_do_not_count(self):
        old = raw_pod("worker", deletionTimestamp=ago(-60), deletionGracePeriodSeconds=120)
        old["metadata"]["labels"]["ray.io/cluster"] = "the-one-before"
        decision = decided(raw_job(status=running_status(), labels=QUEUE), raw_ray_job(**RUNNING), pods=[old])
        assert decision.status is None
        assert decision.actions == ()


def test_a_rayjob_that_someone_suspended_was_not_taken_by_a_queue():
    decision = decided(
        raw_job(status=running_status()), raw_ray_job(suspend=True, jobDeploymentStatus="ValidationFailed")
    )
    assert (decision.status["phase"], decision.status["preemptions"]) == ("Pending", 1)
    assert conditions(decision)["Disrupted"]["message"].startswith("RayJob demo-1 was suspended, but not by Kueue")
    (event,) = decision.events
    assert "Delete it (kubectl delete rayjob demo-1 -n team); lorarl recreates it." in event.message


def test_absurd_numbers_in_a_status_are_ignored():
    status = status_of("Starting", f"demo-{'9' * 200}", attempts=2**62, preemptions=2**62)
    decision = decided(raw_job(status=status), raw_ray_job(**RUNNING))
    assert {key: decision.status[key] for key in ("phase", "rayJobName", "attempts", "preemptions", "restarts")} == {
        "phase": "Running",
        "rayJobName": "demo-1",
        "attempts": 0,
        "preemptions": 0,
        "restarts": 0,
    }


class TestRefusedObjects:
    @pytest.mark.parametrize(
        ("code", "reason", "hint"),
        [
            (403, "Forbidden", "Check the operator's permissions."),
            (422, "Invalid", "Correct the named fields in a new job."),
        ],
    )
    def test_the_message_says_what_to_do(self, code, reason, hint):
        refusal = Refusal("ConfigMap", "lorarl-demo", code, reason, "it says why", START, 1)
        assert f"it says why. {hint}" in conditions(decided(raw_job(), refusal=refusal))["Running"]["message"]

    @pytest.mark.parametrize("message", REFUSED_BY_ADMISSION)
    def test_neither_rights_nor_a_new_job_help_against_a_policy(self, message):
        for code, reason in ((403, "Forbidden"), (422, "Invalid"), (400, "BadRequest")):
            refusal = Refusal("ConfigMap", "lorarl-demo", code, reason, message, START, 1)
            told = conditions(decided(raw_job(), refusal=refusal))["Running"]["message"]
            assert f"{message}. Ask who maintains this policy or webhook." in told


class TestSuspension:
    def test_a_job_that_starts_suspended_has_no_objects(self):
        decision = decided(raw_job({"suspend": True}))
        assert decision.status["phase"] == "Suspended"
        assert decision.actions == ()

    def test_the_status_says_so_before_the_rayjob_is_deleted(self):
        decision = decided(raw_job({"suspend": True}, running_status()), raw_ray_job(**RUNNING))
        assert decision.status["phase"] == "Suspending"
        assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)
        assert "startTime" not in decision.status

    def test_what_resumes_it_is_said(self):
        """A sweep suspends a trial again that it has stopped, or holds at a rung."""
        sweep = {"kind": "LoRARLSweep", "name": "sums", "uid": "sweep-uid", "controller": True}
        for owners, said in (
            (None, "is true. If it is set to false, the job resumes from its newest checkpoint"),
            ([sweep], "If LoRARLSweep sums has set that"),
        ):
            decision = decided(raw_job({"suspend": True}, ownerReferences=owners))
            assert said in conditions(decision)["Suspended"]["message"]

    def test_it_is_suspended_when_the_pods_are_gone(self):
        pods = [raw_pod("worker", deletionTimestamp=ago(-60), deletionGracePeriodSeconds=120)]
        suspending = raw_job({"suspend": True}, status_of("Suspending"))
        assert decided(suspending, pods=pods).status["phase"] == "Suspending"
        assert decided(suspending).status["phase"] == "Suspended"

    def test_the_next_operator_continues(self):
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
    def test_a_rayjob_that_stays_is_named_with_its_finalizers(self, job):
        assert not decided(job, gone_since(19), now=START).events
        decision = decided(job, gone_since(20))
        assert conditions(decision)["Running"]["reason"] == "RayJobStays"
        assert (
            "RayJob demo-1 is being deleted, but it is blocked by finalizers: example.com/hold"
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

    def test_our_own_deletion_is_not_a_preemption(self):
        assert decided(raw_job({"suspend": True}, status_of("Suspending"))).status["preemptions"] == 0

    def test_a_rayjob_lost_before_the_suspension_is_counted(self):
        decision = decided(raw_job({"suspend": True}, running_status()))
        assert (decision.status["preemptions"], decision.status["phase"]) == (1, "Suspended")

    def test_an_attempt_that_no_status_has_named_yet_is_not_resumed(self):
        decision = decided(raw_job({"suspend": True}), raw_ray_job(1))
        assert decision.status["rayJobName"] == "demo-1"

    def test_a_failure_seen_together_with_the_suspension_is_counted(self):
        failed = raw_ray_job(jobDeploymentStatus="Failed", endTime=ago(30))
        decision = decided(raw_job({"suspend": True}, running_status()), failed)
        assert (decision.status["attempts"], decision.status["phase"]) == (1, "Suspending")


class TestSpecChanges:
    def test_new_steps_reach_a_running_trainer_before_the_status_says_so(self):
        job = raw_job({"trainer": {"steps": 500}}, running_status(), generation=2)
        decision = decided(job, raw_ray_job(**RUNNING))
        (config,) = decision.prepare
        assert '"steps": 500' in config.manifest["data"]["job.yaml"]
        assert decision.status["observedGeneration"] == 2

    def test_an_invalid_change_never_reaches_it(self):
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
    def test_no_stored_object_causes_a_crash(self, spec, phase):
        job = raw_job() | {
            "spec": spec,
            "status": {"phase": phase, "rayJobName": "other", "conditions": [{}], "failure": 7},
        }
        for ray_jobs in ([], [raw_ray_job(**RUNNING)], [raw_ray_job(jobDeploymentStatus="Failed", endTime="nonsense")]):
            decide(observed(job, *ray_jobs), START, SETTINGS)


class TestForeignObjects:
    def test_a_foreign_rayjob_is_neither_adopted_nor_deleted(self):
        decision = decided(raw_job(), raw_ray_job(owner="someone-else", **RUNNING))
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

    def test_a_claim_in_a_cluster_without_claims(self):
        spec = {"cluster": {"gpusPerNode": 1, "gpuClaim": {"deviceClass": "gpu.nvidia.com"}}}
        created = decided(raw_job(spec))
        (name,) = [
            one.manifest["metadata"]["name"]
            for one in created.actions
            if one.manifest["kind"] == "ResourceClaimTemplate"
        ]
        missing = self.refusal(kind="ResourceClaimTemplate", name=name, code=404, message="404 page not found")
        decision = decided(raw_job(spec), refusal=missing)
        assert conditions(decision)["Running"]["reason"] == "ObjectRefused"
        assert "cluster.gpuClaim needs Kubernetes 1.34" in conditions(decision)["Running"]["message"]

    def test_a_taken_name_is_reported_and_tried_again_soon(self):
        taken = self.refusal(kind="ConfigMap", name="lorarl-demo", code=409, reason="AlreadyExists")
        decision = decided(raw_job(), refusal=taken)
        assert conditions(decision)["Running"]["reason"] == "NameTaken"
        assert (
            "ConfigMap lorarl-demo already exists and belongs to something else"
            in conditions(decision)["Running"]["message"]
        )
        assert decision.actions == ()
        assert decision.recheck_seconds == SETTINGS.refused_briefly_seconds

    def test_an_attempt_whose_manifest_cannot_be_updated_continues(self):
        taken = self.refusal(kind="ConfigMap", name="lorarl-demo", code=409, reason="AlreadyExists", generation=2)
        running = {"phase": "Running", "rayJobName": "demo-1"}
        decision = decided(raw_job(status=running, generation=2), raw_ray_job(**RUNNING), refusal=taken)
        assert decision.prepare == ()
        assert decision.status["observedGeneration"] == 2
        assert "continues with the old spec" in decision.events[-1].message

    def test_it_is_tried_again_later_or_when_the_spec_changes(self):
        assert decided(raw_job(), refusal=self.refusal(at=START - timedelta(seconds=31))).actions
        assert decided(raw_job(generation=2), refusal=self.refusal()).actions

    def test_quota(self):
        refusal = self.refusal(
            code=403, reason="Forbidden", message="exceeded quota: team, requested: count/rayjobs.ray.io=1"
        )
        assert conditions(decided(raw_job(), refusal=refusal))["Running"]["reason"] == "QuotaExceeded"


class TestFinalizer:
    def test_it_is_set_before_the_rayjob_is_created(self):
        assert decided(raw_job(DELETE)).actions[0] == AddFinalizer()

    def test_it_follows_the_policy(self):
        assert decided(
            raw_job(status=running_status(), finalizers=["lorarl.io/cleanup"]), raw_ray_job(**RUNNING)
        ).actions == (RemoveFinalizer(),)
        assert decided(raw_job(DELETE, running_status()), raw_ray_job(**RUNNING)).actions == (AddFinalizer(),)

    def test_parse_keeps_the_time_of_the_deletion_request(self):
        pod = parse.pod(raw_pod(deletionTimestamp=ago(-120), deletionGracePeriodSeconds=120))
        assert (pod.deletion_asked_at, pod.gone_by) == (START, START + timedelta(seconds=120))


def test_a_rayjob_that_lorarl_did_not_make_is_somebody_else_s():
    """It has no owner either, but nothing of lorarl's."""
    foreign = raw_ray_job(**RUNNING)
    for key in ("ownerReferences", "labels", "annotations"):
        foreign["metadata"].pop(key, None)
    running = conditions(decided(raw_job(), foreign))["Running"]
    assert running["reason"] == "NameTaken"
    assert "belongs to something else" in running["message"]


def test_a_rayjob_that_a_deleted_job_left_behind_is_named_so():
    """After kubectl delete --cascade=orphan. Unlike those of a deleted job, it does not disappear by itself."""
    orphan = raw_ray_job(**RUNNING)
    del orphan["metadata"]["ownerReferences"]
    running = conditions(decided(raw_job(), orphan))["Running"]
    assert running["reason"] == "NameTaken"
    assert "(kubectl delete rayjob demo-1 -n team)" in running["message"]
    assert "disappear" not in running["message"]


def test_a_job_with_a_checkpoint_says_so_once():
    """`kubectl wait --for=condition=Checkpointed` ends when no loss can cost the whole training any more."""
    assert decided(raw_job(status=running_status()), raw_ray_job(**RUNNING)).status is None
    decision = decided(raw_job(status=running_status(checkpointTime=ago(5))), raw_ray_job(**RUNNING))
    assert conditions(decision)["Checkpointed"]["status"] == "True"
    assert decision.events == ()
    later = decision.status | {"checkpointTime": ago(1)}
    assert decided(raw_job(status=later), raw_ray_job(**RUNNING)).status is None
