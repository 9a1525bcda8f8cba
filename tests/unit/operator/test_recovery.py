"""An attempt that loses worker pods keeps its RayJob while its driver replaces them, within limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lorarl_operator.decide import parse
from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.decision import DeletePod
from lorarl_operator.decide.recovery import Workers, is_complete
from lorarl_operator.decide.settings import Settings
from unit.operator.decisions import RUNNING, conditions, decided, running_status, status_of
from unit.operator.observed_world import SETTINGS, START, ago, condition, ended, observed, raw_job, raw_pod, raw_ray_job

ASKED_TO_GO = {"deletionTimestamp": ago(-59), "deletionGracePeriodSeconds": 60}
EVICTED = condition("DisruptionTarget", True, "EvictionByEvictionAPI", "Eviction API: evicting")
HEAD = raw_pod("head", conditions=[condition("Ready", True)])


def worker(name, *, age=60, **parts):
    return raw_pod("worker", name=name, age=age, conditions=[condition("Ready", True)], **parts)


def evicted(name):
    return raw_pod("worker", name=name, conditions=[EVICTED], deletionTimestamp=ago(-59), deletionGracePeriodSeconds=60)


def trains_with(*pods, attempt=1, **more):
    return {"workers": {"attempt": attempt, "pods": list(pods), **more}, "step": 7}


def recovering(*pods, since=20, **more):
    """A status whose loss was recorded `since` seconds ago."""
    lost = "Attempt 1: The worker pod a was removed."
    return status_of(
        "Running",
        startTime=ago(50),
        recoveringSince=ago(since),
        conditions=[
            condition("Running", False, "Recovering", "m", age=since),
            condition("Disrupted", True, "EvictionByEvictionAPI", lost, age=since),
        ],
        **trains_with(*pods, **more),
    ) | {"preemptions": 1, "restarts": 1}


def decided_on(status, *pods, spec=None, departed=(), settings=SETTINGS, **ray_job):
    gone = tuple(parse.pod(pod) for pod in departed)
    seen = observed(raw_job(spec, status), raw_ray_job(**RUNNING | ray_job), pods=[HEAD, *pods], departed=gone)
    return decide(seen, START, settings)


def test_the_training_is_complete_with_sound_pods_alone():
    uses = Workers(frozenset({"a", "b"}), "")
    a, b, going = (parse.pod(pod) for pod in (worker("a"), worker("b"), worker("b", **ASKED_TO_GO)))
    assert is_complete(uses, [a, b]) and not is_complete(uses, [a])
    assert not is_complete(uses, [a, going]), "its deletion has begun"
    assert not is_complete(replace(uses, lost="a pod is gone"), [a, b]), "the trainer still waits"


class TestLoss:
    @pytest.mark.parametrize(
        ("resume", "what"),
        [
            ("Auto", "resumes from its newest checkpoint with"),
            ("Never", "starts from the beginning (checkpoint.resume"),
        ],
    )
    def test_the_message_says_where_the_training_starts(self, resume, what):
        spec = {"checkpoint": {"resume": resume}}
        decision = decided_on(running_status(**trains_with("a", "b")), evicted("a"), worker("b"), spec=spec)
        (event,) = decision.events
        assert what in event.message and what in conditions(decision)["Running"]["message"]

    def test_the_rayjob_stays_and_the_loss_is_counted_once(self):
        decision = decided_on(running_status(**trains_with("a", "b")), evicted("a"), worker("b"))
        assert decision.actions == ()
        status = decision.status
        assert (status["phase"], status["rayJobName"], status["preemptions"]) == ("Running", "demo-1", 1)
        assert status["recoveringSince"] == ago(0)
        told = conditions(decision)
        assert (told["Running"]["status"], told["Running"]["reason"]) == ("False", "Recovering")
        assert "worker pod a on node node-1 was removed: Eviction API: evicting" in told["Running"]["message"]
        assert (told["Disrupted"]["status"], told["Disrupted"]["reason"]) == ("True", "EvictionByEvictionAPI")
        assert [event.reason for event in decision.events] == ["Recovering"]
        again = decided_on(status | trains_with("a", "b"), evicted("a"), worker("b"))
        assert again.status is None and again.actions == ()

    def test_the_trainer_may_notice_first(self):
        decision = decided_on(running_status(**trains_with("a", lost="a worker's machine is gone")), worker("a"))
        assert (decision.status["preemptions"], conditions(decision)["Disrupted"]["reason"]) == (1, "NodeLost")
        assert decision.actions == ()

    def test_the_cause_has_a_moment_to_arrive_after_the_trainers_word(self):
        """The kubelet evicts a pod for what the job itself wrote. The worker hears that first, and not why."""

        def after(seconds, pod):
            written = {"manager": "lorarl-trainer", "subresource": "status", "time": ago(seconds)}
            status = running_status(**trains_with("a", lost="a worker's pod is about to be removed"))
            seen = observed(raw_job(None, status, managedFields=[written]), raw_ray_job(**RUNNING), pods=[HEAD, pod])
            return decide(seen, START, SETTINGS)

        assert (after(1, worker("a")).status, after(1, worker("a")).recheck_seconds) == (None, 2)
        assert conditions(after(3, worker("a")))["Disrupted"]["reason"] == "NodeLost"
        full = 'Usage of EmptyDir volume "cache" exceeds the limit "1Gi".'
        decision = after(1, raw_pod("worker", name="a", phase="Failed", reason="Evicted", message=full))
        assert conditions(decision)["Running"]["message"].startswith("Attempt 1 ended with DiskFull")
        assert (decision.status["attempts"], decision.status.get("preemptions", 0)) == (1, 0)

    def test_a_deleted_pod_is_no_lost_machine_if_the_trainer_is_first(self):
        lost = running_status(**trains_with("a", lost="a worker's pod is about to be removed"))

        def after(seconds):
            deletion = {"deletionTimestamp": ago(seconds - 60), "deletionGracePeriodSeconds": 60}
            return decided_on(lost, worker("a", **deletion))

        decision = after(1)
        assert (decision.status, decision.actions, decision.recheck_seconds) == (None, (), 2)
        assert conditions(after(3))["Disrupted"]["reason"] == "PodDeleted"

    def test_a_pod_that_was_deleted_and_forgotten_is_still_missing(self):
        """An operator that was restarted meanwhile knows no deleted pods."""
        decision = decided_on(recovering("a"), worker("new", age=15))
        assert decision.actions == ()
        assert (decision.status["preemptions"], decision.status["recoveringSince"]) == (1, ago(20))

    def test_what_the_new_pod_waits_for_is_said(self):
        waits = raw_pod(
            name="new",
            phase="Pending",
            nodeName="",
            age=15,
            conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}],
        )
        engine = {**waits, "metadata": {**waits["metadata"], "name": "e", "uid": "e"}}
        engine["metadata"]["labels"] = waits["metadata"]["labels"] | {"lorarl.io/role": "engine"}
        decision = decided_on(recovering("a"), engine, waits)
        assert "No node fits worker pod new: 0/3 nodes" in conditions(decision)["Running"]["message"]


class TestRecovered:
    def test_the_attempt_runs_again_when_the_trainer_names_its_new_pods(self):
        status = recovering("b", "new") | {"resumedFromStep": 6}
        decision = decided_on(status, worker("b"), worker("new", age=15), departed=[evicted("a")])
        assert "recoveringSince" not in decision.status
        assert (decision.status["recoveries"], decision.status["preemptions"]) == (1, 1)
        told = conditions(decision)
        assert (told["Running"]["status"], told["Disrupted"]["status"]) == ("True", "False")
        assert [(event.reason, event.message) for event in decision.events] == [
            ("Recovered", "Attempt 1 continues after step 6.")
        ]

    def test_a_worker_that_was_replaced_explains_no_later_end(self):
        decision = decided_on(running_status(**trains_with("new")), worker("new"), departed=[evicted("a")])
        assert decision.actions == () and "preemptions" not in (decision.status or {})


SILENT = [condition("Ready", False), condition("ContainersReady", True)]
TAINTED = condition("DisruptionTarget", True, "DeletionByTaintManager", "Taint manager: deleting")


class TestSilentNode:
    """No kubelet confirms that the pod is gone, and KubeRay replaces it only then."""

    def lost(self, *conditions_, since=300, gone=11, **more):
        deletion = {} if gone is None else {"deletionTimestamp": ago(gone), "deletionGracePeriodSeconds": 120}
        pod = raw_pod("worker", name="a", conditions=list(conditions_), **deletion)
        return decided_on(recovering("a", "b", since=since, **more), pod, worker("b"))

    def test_its_pod_is_removed_after_toleration_and_grace_period(self):
        decision = self.lost(*SILENT, TAINTED)
        assert decision.actions == (DeletePod("a", "pod-worker-1", at_once=True),)
        assert (decision.status["phase"], decision.status["rayJobName"]) == ("Running", "demo-1"), "it keeps its quota"
        assert (decision.status["preemptions"], decision.events) == (1, ())

    @pytest.mark.parametrize(
        ("found", "gone"),
        [
            ((*SILENT, TAINTED), 9),  # its grace period has just ended: a kubelet that responds is about to tell
            ((*SILENT, TAINTED), -60),
            ((*SILENT,), 11),  # someone else deleted it: a kubelet may only be slow
            ((*SILENT,), None),  # it may come back while the pod tolerates that
            ((condition("Ready", True), TAINTED), 11),
        ],
    )
    def test_otherwise_it_is_waited_for(self, found, gone):
        decision = self.lost(*found, gone=gone, lost="a worker's machine is gone")
        assert decision.actions == ()
        assert (decision.status or {}).get("phase", "Running") == "Running"

    def test_a_replacement_on_another_such_node_is_removed_too(self):
        new = raw_pod(
            "worker", name="new", conditions=[*SILENT, TAINTED], deletionTimestamp=ago(20), deletionGracePeriodSeconds=9
        )
        decision = decided_on(recovering("a"), new)
        assert [(one.name, one.at_once) for one in decision.actions] == [("new", True)]

    def test_a_broken_pod_on_a_node_that_responds_gets_its_grace_period(self):
        broken = [condition("Ready", False), condition("ContainersReady", False)]
        decision = self.lost(*broken, gone=None, since=75, lost="a worker's machine is gone")
        assert decision.actions == (DeletePod("a", "pod-worker-1", at_once=False),)
        assert self.lost(*broken, gone=None, since=74, lost="gone").actions == ()
        assert self.lost(*broken, gone=None, since=75).actions == (), "Ray has not lost it"

    def test_it_is_not_waited_for_without_end(self):
        decision = self.lost(*SILENT, gone=None, since=600, lost="gone")
        assert (decision.status["phase"], decision.status["rayJobName"]) == ("Restarting", "demo-2")


class TestFallback:
    def restarts(self, decision, preemptions=1):
        status = decision.status
        assert (status["phase"], status["rayJobName"], status["preemptions"]) == ("Restarting", "demo-2", preemptions)
        assert "recoveringSince" not in status
        assert [action.name for action in decision.actions] == ["demo-1"]

    @pytest.mark.parametrize("report", [{}, trains_with("a", attempt=7), trains_with()])
    def test_a_trainer_that_does_not_report_its_pods_cannot_recover(self, report):
        self.restarts(decided_on(running_status(**report), evicted("a")))

    def test_an_installation_may_forbid_it(self):
        never = Settings(trainer_image="t", recovery_seconds=0)
        self.restarts(decided_on(running_status(**trains_with("a")), evicted("a"), settings=never))

    def test_it_takes_too_long(self):
        decision = decided_on(recovering("a", since=600), worker("new", age=590))
        self.restarts(decision)
        assert "were not replaced within 600 s" in conditions(decision)["Running"]["message"]
        assert decided_on(recovering("a", since=599), worker("new", age=590)).actions == ()

    def test_ray_has_lost_a_machine_whose_pod_is_sound(self):
        """Only the training says so, and its own code may say anything: a failure, and no longer a preemption."""
        decision = decided_on(recovering("a", since=75, lost="a worker's machine is gone"), worker("a"))
        self.restarts(decision, preemptions=0)
        assert decision.status["attempts"] == 1
        assert conditions(decision)["Running"]["message"].startswith(
            "Attempt 1 ended with WorkerUnreachable: a worker's machine"
        )
        assert decided_on(recovering("a", since=74, lost="gone"), worker("a")).actions == ()

    def test_the_new_pods_are_lost_too(self):
        refused = [
            raw_pod(name=f"new-{number}", age=15, phase="Failed", reason="OutOfcpu", deletionTimestamp=ago(5 - number))
            for number in range(3)
        ]
        assert decided_on(recovering("a"), departed=refused[:2]).actions == ()
        self.restarts(decided_on(recovering("a"), departed=refused))

    def test_a_worker_that_was_replaced_before_the_loss_does_not_matter(self):
        old = raw_pod("worker", name="old", age=31, phase="Failed", containerStatuses=ended("worker", 137, "OOMKilled"))
        assert decided_on(recovering("a", since=20), old).status["phase"] == "Running"

    def test_a_new_worker_that_exits_is_the_jobs_fault(self):
        exited = raw_pod(
            "worker", name="new", age=15, phase="Failed", containerStatuses=ended("worker", 137, "OOMKilled")
        )
        decision = decided_on(recovering("a"), exited)
        assert (decision.status["phase"], decision.status["attempts"]) == ("Restarting", 1)
        assert conditions(decision)["Running"]["reason"] == "BackingOff"

    def test_the_head_is_lost_meanwhile(self):
        decision = decided_on(
            recovering("a"), jobDeploymentStatus="Failed", message="Ray head pod not found.", endTime=ago(10)
        )
        self.restarts(decision)

    def test_the_driver_gives_up(self):
        failure = {"failure": {"reason": "NodeLost", "message": "m", "attempt": 1, "time": ago(0)}}
        self.restarts(decided_on(recovering("a") | failure, jobDeploymentStatus="Failed", endTime=ago(10)))

    def test_a_worker_that_exits_by_itself_ends_the_attempt_at_once(self):
        exited = raw_pod("worker", name="a", phase="Failed", containerStatuses=ended("worker", 1))
        decision = decided_on(running_status(**trains_with("a")), exited)
        assert (decision.status["attempts"], decision.status["phase"]) == (1, "Restarting")


class TestLimits:
    def test_losses_without_progress_end_the_job(self):
        status = running_status(**trains_with("a")) | {
            "preemptions": 19,
            "preemptionsWithoutProgress": 19,
            "furthestStep": 7,
        }
        decision = decided_on(status, evicted("a"))
        assert decision.status["phase"] == "Failed"
        assert conditions(decision)["Failed"]["reason"] == "NoProgress"

    def test_the_deadline_of_the_job_still_counts(self):
        decision = decided_on(recovering("a"), worker("new", age=15), spec={"activeDeadlineSeconds": 40})
        assert conditions(decision)["Failed"]["reason"] == "DeadlineExceeded"

    def test_waiting_for_a_new_worker_is_no_stall(self):
        decision = decided_on(recovering("a", since=400), worker("new", age=390), spec={"progressDeadlineSeconds": 300})
        assert decision.actions == ()

    def test_a_queue_may_take_the_machines_back_meanwhile(self):
        decision = decided(raw_job(None, recovering("a")), raw_ray_job(suspend=True, jobDeploymentStatus="Suspending"))
        assert (decision.status["phase"], decision.status["preemptions"]) == ("Pending", 1)
        assert "recoveringSince" not in decision.status
