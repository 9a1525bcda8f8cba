"""What Kueue does to a RayJob, and what its job makes of that."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.decision import Create, Want
from lorarl_operator.decide.models import Evidence, Workload
from unit.operator.decisions import PREEMPTED, QUEUE, RUNNING, conditions, decided, running_status, status_of
from unit.operator.observed_world import SETTINGS, START, ago, condition, observed, raw_job, raw_pod, raw_ray_job

LIMITS = {
    "DeactivatedDueToMaximumExecutionTimeExceeded": ("QueueTimeLimit", "kueue.x-k8s.io/max-exec-time-seconds"),
    "DeactivatedDueToRequeuingLimitExceeded": ("QueueGaveUp", "did not become ready"),
    "DeactivatedDueToAdmissionCheck": ("QueueGaveUp", "admission check"),
    "DeactivatedDueToSomethingNew": ("QueueGaveUp", "administrator"),
}


def held(**status):
    ray_job = raw_ray_job(suspend=True, **({"jobDeploymentStatus": "Suspended"} | status))
    ray_job["metadata"]["labels"] |= QUEUE
    return ray_job


def workload(*conditions, active=True):
    return Evidence(workload=Workload("rayjob-demo-1", conditions, active))


def evicted(reason, message="the message", active=True):
    return workload(("Evicted", True, reason, message), active=active)


STOPPED = evicted("Deactivated", "The workload is deactivated", active=False)


def after(status, evidence, ray_job=None, spec=None, **rest):
    return decided(raw_job(spec, status, labels=QUEUE), ray_job or held(), evidence=evidence, **rest)


@pytest.mark.parametrize("phase", ["Starting", "Running"])
def test_why_a_queue_takes_machines_back_is_asked_before_it_is_counted(phase):
    status = running_status() | {"phase": phase}
    first = after(status, None)
    assert (first.status, first.wants_evidence) == (None, Want.WORKLOAD)
    known = after(status, PREEMPTED)
    assert (known.status["phase"], known.status["preemptions"]) == ("Pending", 1 if phase == "Running" else 0)
    assert after(status, Evidence(refused=True)).status["phase"] == "Pending", "Kueue's words may be out of reach"


class TestALimitOfTheQueue:
    @pytest.mark.parametrize("cause", LIMITS)
    @pytest.mark.parametrize("phase", ["Starting", "Running", "Pending", "Restarting"])
    def test_it_ends_the_job(self, cause, phase):
        reason, fix = LIMITS[cause]
        message = "The workload is deactivated due to exceeding the maximum execution time"
        decision = after(running_status() | {"phase": phase}, evicted(cause, message, active=False))
        assert (decision.status["phase"], decision.status["restarts"]) == ("Failed", 0)
        failed = conditions(decision)["Failed"]
        assert failed["reason"] == reason
        assert fix in failed["message"] and message in failed["message"] and "apply it again" in failed["message"]
        assert conditions(decision)["Stalled"]["status"] == "True"
        assert [type(action).__name__ for action in decision.actions] == ["Delete"]

    def test_it_ends_a_job_that_kueue_is_about_to_deactivate(self):
        target = ("DeactivationTarget", True, "MaximumExecutionTimeExceeded", "exceeding the maximum execution time")
        decision = after(running_status(), workload(target, ("Evicted", True, "Preempted", "")))
        assert conditions(decision)["Failed"]["reason"] == "QueueTimeLimit"

    def test_the_rayjob_that_kueue_deletes_after_that_is_no_preemption(self):
        gone = held()
        gone["metadata"] |= {"deletionTimestamp": ago(1), "finalizers": ["ray.io/rayjob-finalizer"]}
        assert after(running_status(), None, gone).wants_evidence is Want.WORKLOAD
        ended = evicted("DeactivatedDueToMaximumExecutionTimeExceeded", active=False)
        decision = after(running_status(), ended, gone)
        assert (decision.status["phase"], decision.status["preemptions"]) == ("Failed", 0)

    def test_a_workload_that_was_started_again_is_not_ended(self):
        decision = after(running_status(), evicted("DeactivatedDueToRequeuingLimitExceeded"))
        assert decision.status["phase"] == "Pending"


class TestAStop:
    def stopped(self):
        return after(running_status(), STOPPED).status

    def test_it_says_who_did_it_and_what_starts_the_job_again(self):
        decision = after(running_status(), STOPPED)
        assert (decision.status["phase"], decision.status["preemptions"]) == ("Pending", 1)
        running = conditions(decision)["Running"]
        assert running["reason"] == "QueueStopped"
        assert "(kueuectl resume workload rayjob-demo-1 -n team)" in running["message"]
        assert (conditions(decision)["Stalled"]["status"], "Reconciling" in conditions(decision)) == ("True", False)
        (event,) = decision.events
        assert (event.type, event.reason) == ("Warning", "QueueStopped")
        assert "when there is room" not in event.message

    def test_a_waiting_job_that_is_stopped_says_so(self):
        waiting = after({}, workload()).status
        decision = after(waiting, STOPPED)
        assert conditions(decision)["Running"]["reason"] == "QueueStopped"
        assert [event.type for event in decision.events] == ["Warning"]
        assert decision.status["preemptions"] == 0

    def test_it_lasts_until_someone_starts_the_workload_again(self):
        status = self.stopped()
        assert after(status, STOPPED).status is None
        assert after(status, None).status is None
        started = workload(("Requeued", True, "Reactivated", ""), ("Evicted", True, "Deactivated", ""))
        decision = after(status, started)
        assert conditions(decision)["Running"]["reason"] == "Queued"
        assert conditions(decision)["Reconciling"]["status"] == "True"
        assert after(status, None, raw_ray_job(**RUNNING)).status["phase"] == "Running"

    def test_neither_a_change_nor_a_suspension_brings_it_back(self):
        """A new RayJob would have a new Workload, which is not stopped."""
        for job in (
            raw_job({"suspend": True}, self.stopped(), labels=QUEUE),
            raw_job(None, self.stopped(), labels=QUEUE | {"kueue.x-k8s.io/priority-class": "urgent"}),
        ):
            ray_job = held()
            ray_job["metadata"]["annotations"]["lorarl.io/passed"] = "another"
            assert decided(job, ray_job, evidence=STOPPED).actions == ()

    @pytest.mark.parametrize("change", [{"suspend": True}, None], ids=["suspended", "another priority"])
    def test_a_stop_that_is_not_told_yet_is_found_before_a_change(self, change):
        labels = QUEUE if change else QUEUE | {"kueue.x-k8s.io/priority-class": "urgent"}
        job, ray_job = raw_job(change, after({}, workload()).status, labels=labels), held()
        ray_job["metadata"]["annotations"]["lorarl.io/passed"] = "another"
        asks = decided(job, ray_job)
        assert (asks.status, asks.actions, asks.wants_evidence) == (None, (), Want.STOP)
        stopped = decided(job, ray_job, evidence=STOPPED)
        assert conditions(stopped)["Running"]["reason"] == "QueueStopped" and stopped.actions == ()
        waits = decided(job, ray_job, evidence=workload())
        assert [type(action).__name__ for action in waits.actions] == ["Delete"]
        assert waits.wants_evidence is Want.STOP, "what is known may be old"
        assert decided(job, ray_job, evidence=Evidence(refused=True)).actions

    def test_it_says_that_a_start_alone_resumes_no_suspended_job(self):
        decision = decided(raw_job({"suspend": True}, self.stopped(), labels=QUEUE), held(), evidence=STOPPED)
        told = conditions(decision)["Running"]["message"]
        assert "kueuectl resume workload" in told and "spec.suspend is true too" in told
        decision = decided(raw_job(None, decision.status, labels=QUEUE), held(), evidence=STOPPED)
        assert "spec.suspend" not in conditions(decision)["Running"]["message"]

    def test_a_rayjob_that_is_deleted_meanwhile_ends_the_job(self):
        decision = decided(raw_job(None, self.stopped(), labels=QUEUE))
        assert decision.status["phase"] == "Failed"
        assert not any(isinstance(action, Create) for action in decision.actions)
        assert "apply it again" in conditions(decision)["Failed"]["message"]

    @pytest.mark.parametrize("kind", ["LocalQueue", "ClusterQueue"])
    def test_a_stopped_queue_is_told(self, kind):
        decision = after(running_status(), evicted(f"{kind}Stopped", f"The {kind} is stopped"))
        running = conditions(decision)["Running"]
        assert (running["reason"], decision.status["preemptions"]) == ("QueueStopped", 1)
        assert f"kueuectl resume {kind.lower()}" in running["message"]
        again = workload(("Evicted", True, f"{kind}Stopped", ""), ("Requeued", True, f"{kind}Restarted", ""))
        assert conditions(after(decision.status, again))["Running"]["reason"] == "Queued"


class TestARayJobThatKubeRayRefuses:
    REFUSED = "restartPolicy for head Pod should be Never or unset when using SidecarMode"

    def refused(self, **parts):
        return held(jobDeploymentStatus="ValidationFailed", message=self.REFUSED, **parts)

    def test_it_is_told_also_while_the_queue_holds_it(self):
        decision = after(status_of("Pending"), workload(), self.refused())
        assert (decision.status["phase"], conditions(decision)["Running"]["reason"]) == ("Pending", "RayJobRefused")
        assert self.REFUSED in conditions(decision)["Running"]["message"]
        assert "startTime" not in decision.status, "its time in the queue does not count"

    def test_its_start_deadline_counts(self):
        status = after(status_of("Pending"), workload(), self.refused()).status
        late = START + timedelta(seconds=60)
        spec = {"startDeadlineSeconds": 100}
        assert after(status, None, self.refused(), spec).recheck_seconds <= 40
        assert after(status, None, self.refused(), spec, now=late).status["phase"] == "Failed"


class TestWords:
    def test_evidence_of_before_is_no_refusal(self):
        """Kueue had admitted the Workload, and has stopped the RayJob since."""
        admitted = workload(("QuotaReserved", True, "", ""), ("Admitted", True, "", "The workload is admitted"))
        message = conditions(after(status_of("Pending"), admitted))["Running"]["message"]
        assert "admitted" not in message

    def test_a_priority_class_that_may_be_missing_is_named(self):
        labels = QUEUE | {"kueue.x-k8s.io/priority-class": "nope"}
        none = Evidence(workload=Workload("", ()))
        decision = decide(observed(raw_job(labels=labels), held(), evidence=none), START, SETTINGS)
        assert "WorkloadPriorityClass nope" in conditions(decision)["Running"]["message"]

    def test_kueues_own_gate_for_a_topology_lasts_a_moment(self):
        gate = [condition("PodScheduled", False, "SchedulingGated")]

        def reason(age):
            pods = [raw_pod(phase="Pending", nodeName="", age=age, conditions=gate)]
            ray_job = raw_ray_job(jobDeploymentStatus="Initializing")
            return conditions(decided(raw_job(), ray_job, pods=pods))["Running"]["reason"]

        assert (reason(2), reason(30)) == ("Starting", "SchedulingGated")


class TestALossIsCountedOnce:
    def test_a_head_that_is_evicted_before_the_job_is_suspended(self):
        """The end is counted, and KubeRay does not know it yet."""
        head = raw_pod("head", conditions=[condition("DisruptionTarget", True, "EvictionByEvictionAPI", "drained")])
        ray_job = raw_ray_job(**RUNNING, failed=0)
        ray_job["spec"]["backoffLimit"] = 8
        counted = decided(raw_job(None, running_status()), ray_job, pods=[head])
        assert (counted.status["phase"], counted.status["preemptions"]) == ("Restarting", 1)
        suspended = decided(raw_job({"suspend": True}, counted.status), ray_job, pods=[head])
        assert (suspended.status["phase"], suspended.status["preemptions"]) == ("Suspending", 1)

    def test_a_queue_that_takes_the_machines_of_an_attempt_that_recovers(self):
        status = running_status(recoveringSince=ago(2), preemptions=1)
        decision = after(status, evicted("NodeFailures"))
        assert (decision.status["phase"], decision.status["preemptions"]) == ("Pending", 1)

    def test_a_rayjob_that_is_deleted_after_its_queue_took_its_machines(self):
        taken = after(running_status(), PREEMPTED).status
        gone = held()
        gone["metadata"] |= {"deletionTimestamp": ago(1), "finalizers": ["ray.io/rayjob-finalizer"]}
        decision = after(taken, PREEMPTED, gone)
        assert (decision.status["phase"], decision.status["preemptions"]) == ("Restarting", 1)
